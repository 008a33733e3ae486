#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_tcpx.sh [--build DIR] [--out DIR] [--turns N] [--against DIR]... [--only-turns]
# On a machine with GPUs and a finished build (scripts/gpu_check.sh makes one in build/gpu): device memory through
# net plugins. Prints figures and a verdict for each step; logs go to --out. Exits with 1 if a step failed.
# The engine over nccl_net and over tcp are measured in turns, 3 or --turns rounds; with --against the nccl_net of
# other builds takes part, and with --only-turns nothing else is done: a round takes 25 s and 12 for each build.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build/gpu out=build/gpu/tcpx turns=3 only_turns=0 others=()
while (($#)); do
  case $1 in
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --turns) turns=$2 && shift ;;
    --against) others+=("$2") && shift ;;
    --only-turns) only_turns=1 ;;
    *) echo "gpu_tcpx.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
failed=0
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
if ((gpus == 0)); then
  echo "gpu_tcpx.sh: no GPU here" >&2
  exit 2
fi
second=$((gpus > 1 ? 1 : 0))
plugin=$(realpath "$build/softnet/libnccl-net-soft.so")
tcpx=$build/tools/tcpx/tcpx

# step NAME SECONDS COMMAND...: runs it, keeps the log, prints the verdict, figures and on failure the log's end.
step() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  grep -E '^(figure|nccl) ' "$out/$name.log"
  if grep -q '^\[  PASSED  \] 0 tests' "$out/$name.log"; then code=1; fi # every test was skipped
  if ((code == 0)); then
    echo "$name: ok ($((SECONDS - start)) s) $(sed -n 's/^\[  \(PASSED\|SKIPPED\)  *\] \([0-9]* test[s]*\).*/\1 \2/p' "$out/$name.log" | tr '\n' ' ')"
  else
    failed=1
    echo "$name: FAILED ($code, $((SECONDS - start)) s)"
    tail -n 40 "$out/$name.log"
  fi
}

# pair NAME SERVER_OPTION... -- CLIENT_OPTION...: tcpx perf between two processes; the client's rows are printed.
pair() {
  local name=$1 server
  shift
  timeout 40 "$tcpx" perf server --plugin "$plugin" --gpu "$second" >"$out/$name.server.log" 2>&1 &
  server=$!
  if timeout 40 "$tcpx" perf client 127.0.0.1 --plugin "$plugin" --gpu 0 --json "$@" >"$out/$name.log" 2>&1 &&
    wait "$server"; then
    sed "s/^/figure $name /" "$out/$name.log"
    echo "$name: ok"
  else
    failed=1
    echo "$name: FAILED"
    kill "$server" 2>/dev/null
    tail -n 5 "$out/$name.log" "$out/$name.server.log"
  fi
}

echo "GPUs: $gpus"
before_turns() {
  step gpu_unpack_test 40 "$build/tests/hardware/gpu_unpack_test" --gtest_color=no
  step gpu_nccl_net_pages 60 "$build/tests/hardware/gpu_nccl_net_test" --gtest_color=no
  step gpu_nccl_net_random 60 env SOFTNET_FRAGMENTS=random SOFTNET_STRICT=1 SOFTNET_SEED=5 \
    "$build/tests/hardware/gpu_nccl_net_test" --gtest_color=no
  step gpu_nccl_net_tcpxo 60 env SOFTNET_HABITS=tcpxo SOFTNET_NAME=FasTrak \
    "$build/tests/hardware/gpu_nccl_net_test" --gtest_color=no

  export SOFTNET_CUDA=1 SOFTNET_INTERFACES=lo
  for way in kernel copy host; do
    pair "tcpx_perf_$way" --channels 4 --sizes 1M,64M --rounds 5 --unpack "$way"
  done
  unset SOFTNET_CUDA
}
((only_turns)) || before_turns

# The engine itself, device to device between two processes: the plugin beside tcp, in one run.
engine() {
  local name=$1 from=$2 transport=$3 server
  local perf=$from/tools/perf/p2p-perf
  local -x UCCL_P2P_NCCL_NET_PLUGIN
  UCCL_P2P_NCCL_NET_PLUGIN=$(realpath "$from/softnet/libnccl-net-soft.so")
  shift 3
  timeout 40 "$perf" server --port 19911 --memory "cuda:$second" >"$out/$name.server.log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    grep -qs listening "$out/$name.server.log" && break
    read -r -t 0.1 <> <(:) || true
  done
  if timeout 40 "$perf" client 127.0.0.1 --port 19911 --memory cuda:0 --transport "$transport" --op write,read \
    --depth 2 --duration 1 --verify --json - "$@" >"$out/$name.log" 2>&1 && wait "$server"; then
    grep '^{' "$out/$name.log" | sed "s/^/figure $name /"
    echo "$name: ok"
  elif grep -q 'without CUDA' "$out/$name.log" "$out/$name.server.log"; then
    echo "$name: skipped: p2p-perf was built without CUDA"
  else
    failed=1
    echo "$name: FAILED"
    kill "$server" 2>/dev/null
    tail -n 5 "$out/$name.log" "$out/$name.server.log"
  fi
}
export UCCL_P2P_LISTEN_ADDRESS=127.0.0.1 SOFTNET_CUDA=1 SOFTNET_INTERFACES=lo
# turn LABEL BUILD TRANSPORT ROUND: one round of one of them.
turn() {
  engine "engine_$1_$4" "$2" "$3" --size 256M
  engine "engine_blocks_$1_$4" "$2" "$3" --size 4K --blocks 40960
}
rm -f "$out"/engine_*.log # of an earlier run
for round in $(seq "$turns"); do
  turn tcp "$build" tcp "$round"
  turn tcpx "$build" tcpx "$round"
  for index in "${!others[@]}"; do turn "against$index" "${others[index]}" tcpx "$round"; done
done
for index in "${!others[@]}"; do echo "against$index: ${others[index]}"; done
python3 scripts/gpu_ratio.py "$out" 0.9 || ((!only_turns)) || failed=1
if ((only_turns)); then exit $failed; fi
# Threads that poll for channels want a core each, on both sides and beside the sessions' threads.
for channels in 8 12; do
  export UCCL_P2P_NCCL_NET_CHANNELS=$channels
  engine "engine_channels_$channels" "$build" tcpx --size 256M
  engine "engine_blocks_channels_$channels" "$build" tcpx --size 4K --blocks 40960
done
unset UCCL_P2P_NCCL_NET_CHANNELS
export UCCL_P2P_NCCL_NET_CHUNK=512K
engine engine_512k "$build" tcpx --size 256M
unset UCCL_P2P_NCCL_NET_CHUNK
unset SOFTNET_CUDA

if ((gpus > 1)) && python3 -c 'import torch' 2>/dev/null; then
  step nccl_proof 150 python3 scripts/gpu_nccl_proof.py "$plugin" $((256 << 20))
  step nccl_proof_four 150 python3 scripts/gpu_nccl_proof.py "$plugin" $((256 << 20)) 4
  step nccl_proof_trees 150 env NCCL_ALGO='allreduce:tree;allgather:ring' python3 scripts/gpu_nccl_proof.py "$plugin" $((256 << 20)) 4
else
  echo "nccl_proof: skipped: needs two GPUs and PyTorch"
fi
echo "gpu_tcpx: $( ((failed)) && echo FAILED || echo passed)"
exit $failed
