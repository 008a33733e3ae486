#!/bin/bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Encrypted tcp beside clear, one stream, a core for each side, in turns; and beside what the cipher alone allows:
# each side spends on a byte what it does in clear, and the cipher's time. Needs openssl's program.
#   scripts/encrypted.sh [P2P_PERF [ROUNDS]]
set -euo pipefail
cd "$(dirname "$0")/.."
perf=${1:-build/release/tools/perf/p2p-perf}
rounds=${2:-5}
folder=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -r "$folder"' EXIT
(umask 077 && echo "one:$(head -c 24 /dev/urandom | base64)" >"$folder/key")
# In turns among equals: one that spins must not keep the other side from its processor.
first=(timeout 60 chrt -r 10)
chrt -r 10 true 2>/dev/null || first=(timeout 60)

# rates TLS: GB/s written and read.
rates() {
  : >"$folder/server"
  UCCL_P2P_TLS=$1 "${first[@]}" taskset -c 0 "$perf" server --port 0 --key-file "$folder/key" >"$folder/server" 2>&1 &
  server=$!
  local port=
  for _ in $(seq 100); do
    port=$(grep -oE '[0-9]+$' "$folder/server" | head -n 1 || true)
    if [ -n "$port" ]; then break; fi
    sleep 0.1
  done
  UCCL_P2P_TLS=$1 "${first[@]}" taskset -c 1 "$perf" client 127.0.0.1 --port "$port" --key-file "$folder/key" \
    --transport tcp --streams 1 --size 64M --depth 2 --duration 0.6 --op write,read |
    awk '$1 == "write" || $1 == "read" { printf "%s ", $6 }'
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  server=
}

printf '%-6s %8s %8s %10s %8s %8s %8s   GB/s, medians of %s rounds\n' op clear cipher encrypted share bound 'of bound' "$rounds"
for ((round = 0; round != rounds; ++round)); do
  cipher=$(taskset -c 1 openssl speed -seconds 1 -bytes 16384 -evp aes-128-gcm 2>/dev/null | awk 'END { print $2 / 1e6 }')
  echo "$(rates off) $(rates on) $cipher"
done | awk '
  { for (i = 1; i <= NF; ++i) all[i, NR] = $i }
  function median(column,   i, j, t, v) {
    for (i = 1; i <= NR; ++i) v[i] = all[column, i]
    for (i = 2; i <= NR; ++i) for (j = i; j > 1 && v[j - 1] > v[j]; --j) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return v[int((NR + 1) / 2)]
  }
  function row(name, clear, sealed, cipher,   bound) {
    bound = 1 / (1 / clear + 1 / cipher)
    printf "%-6s %8.2f %8.2f %10.2f %8.2f %8.2f %8.2f\n", name, clear, cipher, sealed, sealed / clear, bound, sealed / bound
  }
  END { row("write", median(1), median(3), median(5)); row("read", median(2), median(4), median(5)) }'
