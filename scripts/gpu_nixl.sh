#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_nixl.sh --wheel FILE [--build DIR] [--out DIR] [--debs DIR] [--no-build] [--short]
# On a machine with GPUs and torch, without a network: builds the NIXL backend, unpacks a wheel of NIXL beside it and
# moves device memory between two agents over NVLink and over TCP, also mixed with host memory, every
# byte checked; then the blocks of a KV cache with this backend and with NIXL's own UCX. Exits with 1 if a
# transfer by this backend failed. --short: the KV cache and one long block with this backend's own choices and with
# UCX's, without options.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build/gpu out=build/gpu/nixl debs='' wheel='' compile=1 short=0
while (($#)); do
  case $1 in
    --wheel) wheel=$2 && shift ;;
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --debs) debs=$2 && shift ;;
    --no-build) compile=0 ;;
    --short) short=1 ;;
    *) echo "gpu_nixl.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
[[ -f $wheel ]] || { echo "gpu_nixl.sh: --wheel names no file: a NIXL wheel for $(python3 --version)" >&2 && exit 2; }
mkdir -p "$build" "$out"
build=$(realpath "$build") out=$(realpath "$out")

if ((compile)); then
  options=()
  if [[ -n $debs ]]; then
    prefix=$build/packages
    mkdir -p "$prefix"
    for package in "$debs"/*.deb; do dpkg -x "$package" "$prefix"; done
    options+=("-DCMAKE_PREFIX_PATH=$prefix/usr" "-DOPENSSL_ROOT_DIR=$prefix/usr"
      "-DCMAKE_CXX_FLAGS=-isystem $prefix/usr/include/$(uname -m)-linux-gnu")
  fi
  if ! { timeout 120 cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release "${options[@]}" &&
    timeout 400 ninja -C "$build" nixl_plugin; } >"$out/compile.log" 2>&1; then
    tail -40 "$out/compile.log"
    exit 1
  fi
fi

site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m zipfile -e "$wheel" "$site" || exit 1
plugins=$(echo "$site"/.nixl_cu*.mesonpy.libs/plugins)
cp "$build/nixl/libplugin_TCPX.so" "$plugins/" || exit 1
export PYTHONPATH=$site:$PWD/python NIXL_LOG_LEVEL=WARN UCCL_P2P_LISTEN_ADDRESS=127.0.0.1
far=$(($(nvidia-smi -L | wc -l) > 1 ? 1 : 0))
port=20100
failed=0

# row BACKEND HERE THERE OPTION...: a server with memory THERE, a client with memory HERE (cpu, or gpu:INDEX).
row() {
  local backend=$1 here=$2 there=$3 code
  shift 3
  port=$((port + 1))
  local both=(python3 python/benchmarks/benchmark_nixl.py --backend "$backend" --port "$port")
  timeout 110 "${both[@]}" --role server --device "${there%:*}" --local-gpu-idx "${there#*:}" >"$out/server.log" 2>&1 &
  local server=$!
  echo "== $backend $here -> $there $* ${note:-}"
  timeout 100 "${both[@]}" --role client --quiet --device "${here%:*}" --local-gpu-idx "${here#*:}" "$@" \
    >"$out/client.log" 2>&1
  code=$?
  grep -E '^ |verified|blocks:' "$out/client.log" || tail -5 "$out/client.log"
  # NIXL's UCX may crash when its process ends, after all was said.
  if ! grep -q verified "$out/client.log"; then
    tail -5 "$out/server.log"
    [[ $backend == tcpx ]] && failed=1 && echo "FAILED ($code)"
  fi
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  cat "$out/client.log" "$out/server.log" >>"$out/all.log"
}

a=gpu:0 b=gpu:$far
llama=(--model llama-3.1-70b --tp 8 --isl 4096)
if ((short)); then
  for op in write read; do
    row tcpx $a $b --op-type $op "${llama[@]}" --iters 20
    row ucx $a $b --op-type $op "${llama[@]}" --iters 3
    for backend in tcpx ucx; do row "$backend" $a $b --op-type $op --sizes 256M --iters 10; done
  done
  exit $failed
fi
export UCCL_P2P_WORKERS=16 UCCL_P2P_STREAMS=16
for op in write read; do
  for transport in auto tcp; do
    export UCCL_P2P_TRANSPORT=$transport note="(transport $transport)"
    row tcpx $a $b --op-type $op "${llama[@]}" --iters 20
    row tcpx $a $b --op-type $op --sizes 4K,1M,256M --iters 10
    row tcpx $a cpu:0 --op-type $op --sizes 64M --num-kvblocks 1024 --shuffle --iters 5
    row tcpx cpu:0 $b --op-type $op --sizes 64M --num-kvblocks 1024 --shuffle --iters 5
  done
done
unset UCCL_P2P_TRANSPORT
note="(UCX as it is)"
for op in write read; do row ucx $a $b --op-type $op "${llama[@]}" --iters 5; done
export UCX_TLS=tcp,cuda_copy,self UCX_TCP_MAX_BW=100GBs
for segment in 8K 256K 1M; do
  export UCX_TCP_TX_SEG_SIZE=$segment UCX_TCP_RX_SEG_SIZE=$segment note="(UCX over TCP, segments of $segment)"
  row ucx $a $b --op-type write "${llama[@]}" --iters 3
  row ucx $a $b --op-type read "${llama[@]}" --iters 3
done
export UCX_RMA_PPLN_ENABLE=y note="(UCX over TCP, segments of 1M, pipelined)"
row ucx $a $b --op-type write "${llama[@]}" --iters 3
exit $failed
