#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# The short form of `make stacks`: what needs no large packages but those that the other tests install, torch for one. The
# calls that vLLM makes of NIXL are in nixl/tests.
set -euo pipefail
cd "$(dirname "$0")/.."
export UCCL_P2P_VENV=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
scripts/python_environment.sh numpy "${TORCH:-torch==2.13.0}"
for ranks in 2 3; do
  timeout 150 "$UCCL_P2P_VENV/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
    tests/stacks/torch_distributed/run.py
done

# Of LMCache itself and of what its channel imports; with all that it names it would be a GB.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/lmcache/0.5.6
python=$UCCL_P2P_VENV/bin/python
if [ ! -f "$cache/complete" ]; then
  rm -rf "$cache"
  pip() { "$python" -m pip --disable-pip-version-check -q install --target "$cache" "$@"; }
  pip 'numpy<=2.2.6' aiohttp cachetools cryptography msgspec numba prometheus_client psutil py-cpuinfo pyyaml pyzmq \
    requests sortedcontainers
  pip --no-deps lmcache==0.5.6 nixl-cu13==1.5.1
  touch "$cache/complete"
fi
NIXL_PLUGIN_DIR=$("$python" -c 'from uccl import nixl; print(nixl.plugin().parent)')
export NIXL_PLUGIN_DIR
PYTHONPATH=$cache timeout 300 "$python" tests/stacks/lmcache/chunk.py
