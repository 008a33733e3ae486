#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Installs the Python package into an environment of its own and runs its tests; arguments go to pytest.
# UCCL_P2P_VENV: where that environment is. TORCH: which torch to install, as pip takes it.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
torch=${TORCH:-torch==2.13.0}

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -q "$@"; }
pip install 'scikit-build-core>=0.10' 'nanobind>=2.4' ninja pytest pytest-timeout numpy tqdm matplotlib
"$venv/bin/python" -c 'import torch' 2>/dev/null || pip install "$torch"
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
# The build directory stays, so that a second run compiles what changed.
pip install --no-build-isolation --no-deps --force-reinstall "$root"
cd "$root"
exec "$venv/bin/python" -m pytest python/tests "$@"
