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

# The Python package needs packages of PyPI; without them the demo ends here.
echo
echo "Python package (pip install . into an environment outside of the repository):"
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
export UCCL_P2P_VENV=$venv
step python 1800 scripts/python_environment.sh numpy
for example in send_numpy.py write_vectors.py; do
  echo
  echo "\$ python $example"
  timeout 120 "$venv/bin/python" "python/examples/$example"
done
