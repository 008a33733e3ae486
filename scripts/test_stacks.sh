#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# The short form of `make stacks`: what needs no packages but those that the other tests install. The calls that vLLM makes
# of NIXL are in nixl/tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export UCCL_P2P_VENV=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
scripts/python_environment.sh numpy "${TORCH:-torch==2.13.0}"
for ranks in 2 3; do
  timeout 150 "$UCCL_P2P_VENV/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
    tests/stacks/torch_distributed/run.py
done
