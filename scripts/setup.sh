#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/setup.sh demo|test
# Installs what is missing to build and show (demo) or also to test and lint (test), on Debian 12 and
# Ubuntu 24.04 or newer. Does nothing, and needs no rights, where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-demo}

packages=(g++ cmake ninja-build libboost-dev libexpected-dev libfmt-dev libspdlog-dev libssl-dev libcli11-dev nlohmann-json3-dev
  libxxhash-dev python3 python3-venv python3-dev)
case $what in
  demo) ;;
  test)
    packages+=(libgtest-dev libgmock-dev libbenchmark-dev libibverbs-dev clang-19 clang-tidy-19
      clang-format-19 libclang-rt-19-dev codespell shellcheck gcovr ccache iproute2 nftables pkg-config
      git doxygen g++-aarch64-linux-gnu qemu-user qemu-system-x86 busybox-static cpio kmod xz-utils zstd ibverbs-providers etcd-server)
    # Debian alone has it; without a browser one test is skipped.
    if apt-cache show chromium-headless-shell >/dev/null 2>&1; then packages+=(chromium-headless-shell); fi
    ;;
  *)
    echo "setup: unknown argument '$what' (demo or test)" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "setup: this is not Debian or Ubuntu; what is needed is there called: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
    missing+=("$package")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: nothing is missing"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: not root and no sudo; have installed: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo env DEBIAN_FRONTEND=noninteractive)
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
install() { "${as_root[@]}" apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${missing[@]}"; }
if ! { install || { "${as_root[@]}" apt-get update -qq && install; }; } >"$log" 2>&1 </dev/null; then
  echo "setup: apt-get failed:" >&2
  tail -n 20 "$log" >&2
  exit 1
fi
echo "setup: done"
