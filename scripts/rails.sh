#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/rails.sh [--cut] [MBITS...]
# What p2p-perf moves over rails of such speeds at once (Mbit/s; by default four of 1000), of the sum that iperf3 moves
# over the same ones with a stream on each. With --cut: the first rail is dark for a while, then has a fiftieth of its
# speed, then is down, in the middle of writes and of reads; when the others carry theirs, and when all carry again
# (scripts/cut_rail.py). Two hosts as
# network namespaces, joined by a cable a rail with `tc tbf` at both ends. Needs root, iperf3 or nft, and cores that are
# idle. Uses the release preset's p2p-perf. RAILS_SECONDS, RAILS_DEPTH: how long it moves, and how much at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh
perf=build/release/tools/perf/p2p-perf
seconds=${RAILS_SECONDS:-5}
depth=${RAILS_DEPTH:-4}
cut=
if [ "${1:-}" = --cut ]; then
  cut=yes
  shift
fi
speeds=("$@")
if [ ${#speeds[@]} -eq 0 ]; then speeds=(1000 1000 1000 1000); fi
# p2p-perf begins with ten transfers, one after the other, and ends with all that is in flight: a transfer takes about an
# eighth of a second at any speed, 64 MiB of four rails of 1000 Mbit/s.
sum=0
for speed in "${speeds[@]}"; do sum=$((sum + speed)); done
size=$((sum * 16))K
for tool in "$([ "$cut" ] && echo nft || echo iperf3)" tc "$perf"; do
  command -v "$tool" >/dev/null || { echo "rails: '$tool' is missing" >&2 && exit 2; }
done
two_hosts rails 10.98.0

interfaces=''
for i in "${!speeds[@]}"; do
  ip -n "$left" link add "rail$i" type veth peer name "rail$i" netns "$right"
  for side in 1 2; do
    host=$left
    if [ "$side" = 2 ]; then host=$right; fi
    ip -n "$host" addr add "10.99.$i.$side/24" dev "rail$i"
    ip -n "$host" link set "rail$i" up
    ip netns exec "$host" tc qdisc add dev "rail$i" root tbf rate "${speeds[$i]}mbit" burst 256k latency 50ms
  done
  interfaces+=${interfaces:+,}rail$i
done

# Of all rails at once, in Mbit/s.
iperf_sum() {
  local i client clients=()
  for i in "${!speeds[@]}"; do
    IPERF_LIMIT=$((seconds + 20)) iperf_between "10.99.$i.1" "10.99.$i.2" "$folder/iperf.$i" -t "$seconds" &
    clients+=($!)
  done
  for client in "${clients[@]}"; do wait "$client"; done
  python3 - "$folder"/iperf.* <<'END'
import json, sys
print(sum(json.load(open(name))["end"]["sum_received"]["bits_per_second"] for name in sys.argv[1:]) / 1e6)
END
}

# engine OPERATIONS SECONDS: p2p-perf does these for so long each.
engine() {
  export UCCL_P2P_INTERFACES=$interfaces UCCL_P2P_STREAMS=1
  perf_between 10.98.0.1 10.98.0.2 --transport tcp --op "$1" --size "$size" --depth "$depth" --duration "$2"
}

# set_speed KBITS: a command that gives the first rail this speed.
set_speed() {
  local tbf="root tbf rate ${1}kbit burst 256k latency 50ms"
  echo "for host in $left $right; do ip netns exec \$host tc qdisc change dev rail0 $tbf; done"
}

# The first rail is lost and comes back in the middle of an operation.
cut_rail() {
  local operation=$1 loss=$2 cut back
  if [ "$loss" = dark ]; then # what comes over it is dropped on both hosts, and nobody is told
    cut="for host in $left $right; do ip netns exec \$host nft add rule ip dark come iifname rail0 drop; done"
    back="for host in $left $right; do ip netns exec \$host nft flush chain ip dark come; done"
  elif [ "$loss" = slow ]; then
    cut=$(set_speed $((speeds[0] * 20)))
    back=$(set_speed $((speeds[0] * 1000)))
  else
    cut="ip -n $left link set rail0 down"
    back="ip -n $left link set rail0 up"
  fi
  engine "$operation" 30 &
  printf '%s, %s: ' "$operation" "$loss"
  ip netns exec "$right" scripts/cut_rail.py "$interfaces" "$cut" "$back"
  wait $!
}

if [ "$cut" ]; then
  for host in "$left" "$right"; do # now, since to take a hook away may take seconds
    ip netns exec "$host" nft -f - <<<'table ip dark { chain come { type filter hook prerouting priority -300; }; }'
  done
  for operation in write read; do
    for loss in dark slow down; do cut_rail "$operation" "$loss"; done
  done
  exit
fi
best=$(iperf_sum)
echo "iperf3, ${#speeds[@]} rails of ${speeds[*]} Mbit/s: $best Mbit/s"
engine write,read "$seconds"
perf_sums | while read -r operation sum; do
  python3 -c "print(f'p2p-perf, $operation: {$sum:.0f} Mbit/s, {$sum / $best:.3f} of iperf3')"
done
