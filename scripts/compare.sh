#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/compare.sh [FOLDER]
# One sweep between two processes of this machine: ours, and of its peers those that are installed (raw sockets and
# copies, iperf3, Gloo and NCCL by torch, NIXL with UCX or Mooncake, Mooncake's own benchmark, another package called
# uccl), in turns, round after round; then a page of it all, FOLDER/report.html (default build/compare).
# DEVICE: gpu (GPU 0 to GPU 1, the default where there are two) or cpu (host memory). UCCL_PYTHONPATH: where the other
# uccl is. ROUNDS, SIZES, ROW_SECONDS, ITERS: how much. P2P_PERF, PYTHON: the programs; else those that a build or an
# environment of this repository has.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/compare}
rounds=${ROUNDS:-3} sizes=${SIZES:-64K,1M,16M,64M} row_seconds=${ROW_SECONDS:-0.5} iters=${ITERS:-20}
perf=${P2P_PERF:-$(command -v p2p-perf || find build -name p2p-perf -type f -perm -u+x 2>/dev/null | head -n 1)}
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
python=${PYTHON:-$([ -x "$venv/bin/python" ] && echo "$venv/bin/python" || echo python3)}
limit=600  # seconds for one program
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
device=${DEVICE:-$([ "$gpus" -ge 2 ] && echo gpu || echo cpu)}
case $device in
  gpu | cpu) ;;
  *) echo "compare: DEVICE is gpu or cpu, not $device" >&2; exit 1 ;;
esac
[ -x "$perf" ] || { echo "compare: there is no p2p-perf; make build, or set P2P_PERF" >&2; exit 1; }
mkdir -p "$folder"
rm -f "$folder"/*.json

has_module() { "$python" -c "import $1" 2>/dev/null; }
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

ours() {
  local transport
  if [ "$device" = gpu ]; then
    ours_between_gpus "$1"
    return
  fi
  for transport in tcp cma; do
    timeout "$limit" "$perf" local --transport "$transport" --op write,send --size "$sizes" --depth 1 --duration "$row_seconds" \
      --json "$folder/ours_$transport.$1.json"
  done
}
ours_between_gpus() {
  local transport line status=0
  coproc gpu_server { exec "$perf" server --listen 127.0.0.1 --port 0 --memory cuda:1 --persist; }
  # shellcheck disable=SC2154  # coproc sets it
  local pid=$gpu_server_PID
  read -r -t 60 line <&"${gpu_server[0]}" || status=1
  for transport in tcp cuda_ipc; do
    [ "$status" -eq 0 ] || break
    timeout "$limit" "$perf" client 127.0.0.1 --port "${line##*:}" --memory cuda:0 --transport "$transport" --op write,send \
      --size "$sizes" --depth 1 --duration "$row_seconds" --json "$folder/ours_$transport.$1.json" || status=$?
  done
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  return "$status"
}
machine() { timeout "$limit" "$perf" baseline --json "$folder/machine.$1.json"; }
iperf() {
  local port
  port=$(free_port)
  iperf3 -s -1 -B 127.0.0.1 -p "$port" >/dev/null &
  local server=$!
  # It tells nobody when it listens.
  timeout "$limit" "$python" - "$port" <<'END'
import socket, sys, time
deadline = time.monotonic() + 20
listening = f"0100007F:{int(sys.argv[1]):04X} 00000000:0000 0A"
while listening not in open("/proc/net/tcp").read():
    if time.monotonic() > deadline:
        sys.exit("iperf3 does not listen")
    time.sleep(0.05)
END
  timeout "$limit" iperf3 -c 127.0.0.1 -p "$port" -t 3 -J >"$folder/iperf3.$1.json"
  wait "$server"
}
ranks() {
  OMP_NUM_THREADS=1 timeout "$limit" "$python" -m torch.distributed.run --nproc_per_node=2 --master_port="$(free_port)" \
    "$@" --quiet --sizes "$sizes" --iters "$iters"
}
gloo() { ranks python/benchmarks/benchmark_nccl.py --backend gloo --device cpu --json "$folder/gloo.$1.json"; }
nccl() { ranks python/benchmarks/benchmark_nccl.py --backend nccl --device gpu --json "$folder/nccl.$1.json"; }
uccl() {
  PYTHONPATH=$UCCL_PYTHONPATH ranks python/benchmarks/benchmark_any_uccl.py --name "another uccl" --device "$device" \
    --json "$folder/uccl.$1.json"
}
mooncake() {
  timeout "$limit" "$python" python/benchmarks/benchmark_mooncake.py --device "$device" --sizes "$sizes" --quiet \
    --json "$folder/mooncake.$1.json"
}
nixl() {
  local port server status=0 ended=0
  port=$(free_port)
  local both=(python/benchmarks/benchmark_nixl.py --port "$port" --backend "$2" --device "$device")
  timeout "$limit" "$python" "${both[@]}" --role server --local-gpu-idx 1 &
  server=$!
  timeout "$limit" "$python" "${both[@]}" --role client --local-gpu-idx 0 --quiet \
    --sizes "$sizes" --iters "$iters" --json "$folder/nixl_$2.$1.json" || status=$?
  forgiven "$status" "$folder/nixl_$2.$1.json" && status=0
  [ "$status" -eq 0 ] || kill "$server" 2>/dev/null || true
  wait "$server" || ended=$?
  if [ "$ended" -ne 0 ] && ! forgiven "$ended" "$folder/nixl_$2.$1.json"; then status=$ended; fi
  return "$status"
}
# forgiven STATUS JSON: UCX in NIXL's wheels can crash when its process ends, after all bytes were verified.
forgiven() {
  [ "$1" -eq 139 ] && [ -s "$2" ] && echo "a segmentation fault at the process's end, after its work was done"
}

parts=(machine ours)
if command -v iperf3 >/dev/null; then parts+=(iperf); else echo "compare: iperf3 is not installed"; fi
if ! has_module torch; then
  echo "compare: torch is not installed (Gloo, NCCL, another uccl)"
else
  parts+=(gloo)
  if [ "$device" = gpu ]; then parts+=(nccl); fi
  if [ -n "${UCCL_PYTHONPATH:-}" ]; then parts+=(uccl); else echo "compare: UCCL_PYTHONPATH names no other uccl"; fi
fi
if PYTHONPATH=python/benchmarks "$python" -c 'import benchmark_mooncake; benchmark_mooncake.program()' 2>/dev/null; then
  parts+=(mooncake)
else
  echo "compare: Mooncake is not installed (mooncake-transfer-engine-non-cuda; with GPUs mooncake-transfer-engine)"
fi
if ! has_module nixl._api && ! has_module nixl_cu12._api && ! has_module nixl_cu13._api; then
  echo "compare: NIXL is not installed"
elif ! has_module uccl.p2p; then
  echo "compare: the Python package is not installed (NIXL)"
else
  parts+=("nixl ucx")
  if "$python" - <<'END'; then parts+=("nixl mooncake"); else echo "compare: NIXL has no backend Mooncake"; fi
import sys
from uccl import nixl
sys.exit(not any((place.folder / "libplugin_Mooncake.so").exists() for place in nixl.places()))
END
  if "$python" -m uccl.nixl status 2>/dev/null | grep -Eq ": (linked|copied) "; then parts+=("nixl tcpx"); fi
fi

failed=()
for round in $(seq "$rounds"); do
  for part in "${parts[@]}"; do
    read -r what which <<<"$part"
    log=$folder/${part// /_}.$round.log
    start=$SECONDS
    if "$what" "$round" ${which:+"$which"} >"$log" 2>&1 </dev/null; then
      printf '  round %d of %d  %-10s ok      %4d s\n' "$round" "$rounds" "$part" $((SECONDS - start))
    else
      printf '  round %d of %d  %-10s FAILED  %4d s, see %s\n' "$round" "$rounds" "$part" $((SECONDS - start)) "$log"
      failed+=("$part")
    fi
  done
done

find "$folder" -name '*.json' -empty -delete
if ! has_module matplotlib; then
  echo "compare: no page without matplotlib; the figures are in $folder/*.json"
else
  PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} "$python" -m uccl.report "$folder"/*.json -o "$folder/report.html" \
    --title "uccl_p2p and its peers on $(uname -n), $(date +%F)"
  echo "compare: $folder/report.html"
fi
[ ${#failed[@]} -eq 0 ] || exit 1
