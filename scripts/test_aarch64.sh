#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Compiles libraries, programs and the NIXL backend for aarch64, and runs unit tests under qemu-user. On a machine of that
# kind there is nothing to do: all other parts run there.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache

# Those under test: bytes, atomics, memory order and system calls, whatever differs between processors.
tests=(base_test drivers_socket_test engine_schedule_test loopback_test transport_test wire_test)

skip() {
  echo "aarch64: skipped: $1"
  exit 0
}
[ "$(uname -m)" != aarch64 ] || skip 'this is such a machine'
command -v aarch64-linux-gnu-g++ >/dev/null || skip 'there is no aarch64-linux-gnu-g++'
command -v qemu-aarch64 >/dev/null || skip 'there is no qemu-aarch64'

# The packages of that architecture that building needs, unpacked in a folder; the system learns nothing of them.
root=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/aarch64
fetch() {
  local boost
  boost=$(dpkg-query -W -f '${Depends}' libboost-dev | grep -o 'libboost[0-9.]*-dev')
  local packages=(libssl-dev libssl3 libfmt-dev libspdlog-dev libexpected-dev "$boost" libcli11-dev nlohmann-json3-dev
    libxxhash-dev libgtest-dev libgmock-dev)
  local apt=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$root/apt" -o Dir::State::status="$root/apt/status" -o Dir::Cache="$root/apt")
  rm -rf "$root"
  mkdir -p "$root/apt/lists/partial" "$root/apt/archives/partial" "$root/debs"
  touch "$root/apt/status"
  apt-get "${apt[@]}" update || return
  # The shared libraries that the headers' packages belong to, under whatever names this release gives them.
  mapfile -t -O ${#packages[@]} packages < <(apt-cache "${apt[@]}" depends libfmt-dev libspdlog-dev |
    grep -oE 'Depends: (libfmt|libspdlog)[0-9.]+(t64)?$' | cut -d' ' -f2)
  (cd "$root/debs" && apt-get "${apt[@]}" download "${packages[@]}") || return
  for package in "$root"/debs/*.deb; do dpkg-deb -x "$package" "$root" || return; done
  rm -rf "$root/apt" "$root/debs"
  touch "$root/complete"
}
{ [ -e "$root/complete" ] && [ -e "$root/usr/include/xxhash.h" ]; } || fetch || skip 'the packages of that architecture cannot be had'

build=build/aarch64
cmake -G Ninja -B $build -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -DP2P_AARCH64_ROOT="$root" -DP2P_CUDA=OFF \
  -DP2P_WERROR=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DP2P_TEST_OPTIONS=-O0 \
  -DP2P_UNITY_SOURCES=24
cmake --build $build --target uccl_p2p_shared tcpx_p2p_shared nccl_net_soft nixl_plugin p2p-perf tcpx "${tests[@]}"

emulate() { timeout "$1" qemu-aarch64 -L /usr/aarch64-linux-gnu "${@:2}"; }
program() { find "$build" -type f -executable -name "$1"; }

# qemu-user knows neither TCP_INFO nor SIOCOUTQNSD, without which streams of `tcp` are given up after a while: so there
# is no transfer between two processes here.
without=Socket.AFullWindowWaitsWithoutAnAnswerBeingOwed:Socket.WhatCannotLeaveAgainIsNotAnswered
without+=:Socket.TakesNoMoreThanMayWait
# Nor SIOCETHTOOL, which tells the driver of an interface.
without+=:Interfaces.APairOfContainersHasNoSpeed
# And it refuses a whole piece where the system moves the part before bad memory, and takes each MADV_POPULATE for done.
without+=:SafeCopyTest.APartOfTheRoomIsCopiedAndTheRestStays:SafeCopyTest.StopsAtBadMemory
for test in "${tests[@]}"; do
  echo "$test"
  emulate 120 "$(program "$test")" --gtest_brief=1 --gtest_filter="-$without"
done

echo "aarch64: ${#tests[@]} programs passed"
