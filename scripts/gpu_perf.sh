#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_perf.sh P2P_PERF OUT
# Measures transfers between two processes: from the first GPU to the second (or to itself where there is one),
# and between a GPU and the host. Every row is verified. JSON lines go to OUT/perf.json, for gpu_table.py.
# GPU_PERF_SECONDS: of a row. GPU_PERF_STREAMS: TCP streams and workers, in place of what is chosen.
set -uo pipefail
program=$1 out=$2
failed=0
gpus=$(nvidia-smi -L | wc -l)
far=$((gpus > 1 ? 1 : 0))
: >"$out/perf.json"

# rows HERE THERE OPTION...: a server with memory THERE, a client with memory HERE.
rows() {
  local here=$1 there=$2 line port
  shift 2
  coproc server { exec "$program" server --listen 127.0.0.1 --port 0 --memory "$there" --persist 2>>"$out/server.txt"; }
  # shellcheck disable=SC2154  # coproc sets it
  local pid=$server_PID
  if ! read -r -t 20 line <&"${server[0]}"; then
    echo "no server for $there" && failed=1
    kill "$pid" 2>/dev/null
    return
  fi
  port=${line##*:}
  echo "$here -> $there $*"
  rm -f "$out/rows.json"
  timeout 200 "$program" client 127.0.0.1 --port "$port" --memory "$here" --json "$out/rows.json" "$@" || failed=1
  if [[ -f $out/rows.json ]]; then
    sed "s/^{/{\"local\":\"$here\",\"remote\":\"$there\",/" "$out/rows.json" >>"$out/perf.json"
  fi
  kill "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
}

# to_host OPTION...: towards host memory of another process.
to_host() {
  rows $a host "$@" --op write,read --size 64K,1M --depth 1
  rows $a host "$@" --op write,read --size 64M --depth 2
  rows $a host "$@" --op write,read --size 4K --blocks 16384 --depth 2
  rows host host "$@" --op write,read --size 64M --depth 2
}

seconds=${GPU_PERF_SECONDS:-0.3}
a=cuda:0 b=cuda:$far
ipc=(--transport cuda_ipc --duration "$seconds")
tcp=(--transport tcp --duration "$seconds")
if [[ -n ${GPU_PERF_STREAMS:-} ]]; then
  export UCCL_P2P_WORKERS=$GPU_PERF_STREAMS UCCL_P2P_STREAMS=$GPU_PERF_STREAMS
fi
cma=(--transport cma --duration "$seconds")
rows $a $b "${ipc[@]}" --op write,read --size 64K,1M --depth 1
# The same with the devices asleep before each of the first ten.
rows $a $b "${ipc[@]}" --op write,read --size 64K,1M,16M --depth 1 --pause 100
UCCL_P2P_GPU_STANDBY_BLOCKS=0 rows $a $b "${ipc[@]}" --op write,read --size 64K,1M --depth 1
rows $a $b "${ipc[@]}" --op write,read --size 1M,16M,256M --depth 4
rows $a $b "${ipc[@]}" --op write,read --size 4K --blocks 40960 --depth 2
rows $a $b "${ipc[@]}" --op write,read --size 16K --blocks 10000 --depth 2
rows $a $b "${ipc[@]}" --op send --size 16M --depth 4
rows host $b "${ipc[@]}" --op write,read --size 16M --depth 4
# Messages as programs send them, with every transport there is: words take another one than the bytes.
rows $a $b --duration "$seconds" --op write,send --size 64K,1M --depth 1
rows $a $b --duration "$seconds" --op write,send --size 256M --depth 2
rows host host --duration "$seconds" --op write,send,notify --size 4K --depth 1
rows host host --duration "$seconds" --transport tcp --op write,send,notify --size 4K --depth 1
rows host host --duration "$seconds" --op send,notify --size 64 --depth 64
rows host host --duration "$seconds" --transport tcp --op send,notify --size 64 --depth 64
rows $a $b "${tcp[@]}" --op write,read --size 64K,1M,4M --depth 1
# Memory that was mapped chunk by chunk, as PyTorch's expandable segments have it.
for mib in 2 20; do
  m=mapped:0:$mib n=mapped:$far:$mib
  rows $m $n "${ipc[@]}" --op write,read --size 64K,1M --depth 1
  rows $m $n "${ipc[@]}" --op write,read --size 256M --depth 4
  rows $m "$n" "${ipc[@]}" --op write,read --size 4K --blocks 40960 --depth 2
done
rows private:0:20 "$n" "${ipc[@]}" --op write,read --size 256M --depth 4
rows "$m" "private:$far:20" "${ipc[@]}" --op write,read --size 64K,1M --depth 1
rows "$m" "private:$far:20" "${ipc[@]}" --op write,read --size 256M --depth 4
rows "$m" "private:$far:20" "${ipc[@]}" --op write,read --size 4K --blocks 40960 --depth 2
# Private on both sides: by a ring.
c=private:0:20 d=private:$far:20
rows $c "$d" "${ipc[@]}" --op write,read --size 64K,1M,4M,16M,64M --depth 1
rows $c "$d" "${ipc[@]}" --op write,read --size 256M --depth 4
rows $c "$d" "${ipc[@]}" --op write,read --size 4K --blocks 40960 --depth 2
# What registration alone costs the first: the devices were in use until then.
rows $a $b "${ipc[@]}" --op write,read --size 64K,1M,16M,256M --depth 1 --awake
rows $a $b "${ipc[@]}" --op write,read --size 4K --blocks 40960 --depth 2 --awake
rows $a $b "${ipc[@]}" --op write,read --size 16K --blocks 10000 --depth 2 --awake
rows $a $b "${tcp[@]}" --op write,read --size 256M --depth 2
rows $a $b "${tcp[@]}" --op write,read --size 4K --blocks 40960 --depth 2
rows $a $b "${tcp[@]}" --op write,read --size 16K --blocks 10000 --depth 2
rows $a $b "${tcp[@]}" --op send --size 16M --depth 4
to_host "${cma[@]}"
to_host "${tcp[@]}"
exit $failed
