#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_python.sh BUILD [CMAKE_ARGUMENT...]
# Builds the Python package into BUILD/site with the python3 that has torch and nanobind, without pip, for
# machines where nothing can be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
python=$(command -v python3)
cmake -G Ninja -S . -B "$build/python" -DCMAKE_BUILD_TYPE=Release -DP2P_PYTHON=ON -DP2P_TESTS=OFF -DP2P_TOOLS=OFF \
  "-DPython_EXECUTABLE=$python" "$@"
ninja -C "$build/python" p2p_python
rm -rf "$build/site"
mkdir -p "$build/site"
cp -r python/uccl "$build/site/"
cp "$build"/python/python/_p2p*.so "$build/site/uccl/"
PYTHONPATH=$build/site "$python" -c 'from uccl import p2p'
