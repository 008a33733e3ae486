#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/python_environment.sh PACKAGE...
# Installs the Python package and what is named, as pip takes it, into an environment outside of the repository.
# Its folder is UCCL_P2P_VENV, else in the user's cache. UCCL_P2P_BUILD: the build folder of the package, by default one for
# each kind of wheel. UCCL_P2P_PACKAGES_ONLY=1: without the package itself, so that what it needs comes while others compile.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip install 'scikit-build-core>=0.10' 'nanobind>=2.4' ninja "$@"
if [ -n "${UCCL_P2P_PACKAGES_ONLY:-}" ]; then exit 0; fi
if command -v ccache >/dev/null; then
  # Under the name that the presets' builds call it by: to the compiler's cache another name is another compiler.
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CXX=${CXX:-c++}
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
fi
# The build folder stays, so that the next time only what changed is compiled. Warnings are errors as in the presets: so
# the compiler's cache has what those compiled.
folder=()
if [ -n "${UCCL_P2P_BUILD:-}" ]; then folder=("--config-settings=build-dir=$(realpath -m "$UCCL_P2P_BUILD")"); fi
PATH=$venv/bin:$PATH pip install --no-build-isolation --no-deps --force-reinstall \
  --config-settings=cmake.define.P2P_WERROR=ON "${folder[@]}" "$root"
