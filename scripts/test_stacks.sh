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

cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p
python=$UCCL_P2P_VENV/bin/python

# packages NAME/VERSION 'PACKAGE...' 'PACKAGE...': once, into a folder of the cache; the last ones without what they name.
packages() {
  local folder=$cache/$1
  [ ! -f "$folder/complete" ] || return 0
  rm -rf "$folder"
  local pip=("$python" -m pip --disable-pip-version-check -q install --target "$folder")
  # shellcheck disable=SC2086
  "${pip[@]}" $2
  # shellcheck disable=SC2086
  "${pip[@]}" --no-deps $3
  touch "$folder/complete"
}

# Of LMCache itself and of what its channels import; with all that it names it would be a GB.
packages lmcache/0.5.6 'numpy<=2.2.6 aiohttp cachetools cryptography msgspec numba prometheus_client psutil py-cpuinfo
  pyyaml pyzmq requests sortedcontainers' 'lmcache==0.5.6 nixl-cu13==1.5.1'
# The same of checkpoint-engine: torch is in the environment.
packages checkpoint_engine/0.4.2 'fastapi httpx loguru pydantic>=2 pyzmq safetensors uvicorn' checkpoint-engine==0.4.2

NIXL_PLUGIN_DIR=$("$python" -c 'from uccl import nixl; print(nixl.plugin().parent)')
export NIXL_PLUGIN_DIR
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT
"$python" -m uccl.mooncake install --dir "$names"
PYTHONPATH=tests/stacks/support:$names:$cache/lmcache/0.5.6 timeout 300 "$python" tests/stacks/lmcache/chunk.py
PYTHONPATH=tests/stacks/support:$names:$cache/checkpoint_engine/0.4.2 timeout 300 "$python" tests/stacks/checkpoint_engine/p2p_store.py
