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

# Of LMCache itself and of what its channels import; with all that it names it would be a GB.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p
python=$UCCL_P2P_VENV/bin/python
if [ ! -f "$cache/lmcache/0.5.6/complete" ]; then
  rm -rf "$cache/lmcache/0.5.6"
  pip() { "$python" -m pip --disable-pip-version-check -q install --target "$cache/lmcache/0.5.6" "$@"; }
  pip 'numpy<=2.2.6' aiohttp cachetools cryptography msgspec numba prometheus_client psutil py-cpuinfo pyyaml pyzmq \
    requests sortedcontainers
  pip --no-deps lmcache==0.5.6 nixl-cu13==1.5.1
  touch "$cache/lmcache/0.5.6/complete"
fi
# The same of checkpoint-engine: torch is in the environment.
if [ ! -f "$cache/checkpoint_engine/0.4.2/complete" ]; then
  rm -rf "$cache/checkpoint_engine/0.4.2"
  pip() { "$python" -m pip --disable-pip-version-check -q install --target "$cache/checkpoint_engine/0.4.2" "$@"; }
  pip fastapi httpx loguru 'pydantic>=2' pyzmq safetensors uvicorn
  pip --no-deps checkpoint-engine==0.4.2
  touch "$cache/checkpoint_engine/0.4.2/complete"
fi

NIXL_PLUGIN_DIR=$("$python" -c 'from uccl import nixl; print(nixl.plugin().parent)')
export NIXL_PLUGIN_DIR
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT
"$python" -m uccl.mooncake install --dir "$names"
PYTHONPATH=$names:$cache/lmcache/0.5.6 timeout 300 "$python" tests/stacks/lmcache/chunk.py
PYTHONPATH=$names:$cache/checkpoint_engine/0.4.2 timeout 300 "$python" tests/stacks/checkpoint_engine/p2p_store.py
