#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# `make demo`: builds p2p-perf and shows what this machine does between two processes.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh

scripts/setup.sh demo
use_compiler_cache
echo "build (release, in build/demo):"
step configure 300 cmake --preset release -B build/demo -DP2P_TESTS=OFF
step compile 1800 cmake --build build/demo --target p2p-perf

perf=$(find build/demo -name p2p-perf -type f -perm -u+x | head -n 1)
show() {
  echo
  echo "\$ p2p-perf $*"
  timeout 300 "$perf" "$@"
}
show local

# Tensors between two processes, from Python. What it needs of PyPI has to be reachable; else the demo ends here.
echo
echo "Python package (pip install . into an environment outside of the repository):"
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
export UCCL_P2P_VENV=$venv
# In the same folder, whose objects are taken again.
UCCL_P2P_BUILD=build/demo step python 1800 scripts/python_environment.sh numpy
examples=(send_numpy.py write_vectors.py)
# PyPI's torch brings gigabytes of CUDA with it. Its CPU build is taken where pip is told of it.
torch=${TORCH:-torch==2.13.0+cpu}
if "$venv/bin/python" -c 'import torch' 2>/dev/null ||
  timeout 900 "$venv/bin/python" -m pip install -q "$torch" >build/logs/torch.log 2>&1; then
  examples=(write_torch.py "${examples[@]}")
else
  echo "  NumPy arrays only: pip finds no $torch here (PIP_EXTRA_INDEX_URL may name where it is)"
fi
for example in "${examples[@]}"; do
  echo
  echo "\$ python $example"
  timeout 120 "$venv/bin/python" "python/examples/$example"
done
