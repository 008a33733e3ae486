#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/long_link.sh [PROFILE...]
# What p2p-perf moves with default options over a link that is long, thin or lossy, of the best that iperf3 reaches there
# with 1, 2, 4, 8 or 16 streams. PROFILE as of p2p_long_link (tests/support/link_way.h), such as "delay_us=10000
# loss_ppm=1000" for one way; by default those of docs/performance.md. Two hosts as network namespaces. For each of
# LONG_LINK_CONTROLS (cubic bbr, as far as the kernel has them) LONG_LINK_ROUNDS (1) times, LONG_LINK_SECONDS (6) each,
# after LONG_LINK_WARM (4) seconds of iperf3's and the transfers with which p2p-perf begins. iperf3's streams never wait
# for each other, so p2p-perf has 64 MiB in flight.
# Needs root, /dev/net/tun, iperf3, and cores that are idle. Uses the release preset.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh
perf=build/release/tools/perf/p2p-perf
link=build/release/tests/support/p2p_long_link
seconds=${LONG_LINK_SECONDS:-6}
warm=${LONG_LINK_WARM:-4}
profiles=("$@")
if [ ${#profiles[@]} -eq 0 ]; then
  for delay in 1000 10000 50000; do
    for loss in 0 1000 10000; do profiles+=("delay_us=$delay loss_ppm=$loss"); done
  done
  profiles+=("delay_us=10000 jitter_us=2000" "delay_us=10000 late_ppm=1000" "delay_us=10000 duplicate_ppm=10000")
fi
for tool in iperf3 "$perf" "$link"; do
  command -v "$tool" >/dev/null || { echo "long_link: '$tool' is missing" >&2 && exit 2; }
done

bare_hosts long

# The link by a profile; what carries its packets goes with the descriptor 3.
start_link() {
  local word
  mkfifo "$folder/change" "$folder/said"
  "$link" "$left" "$right" 1 "$1" <"$folder/change" >"$folder/said" &
  carrier=$!
  exec 3>"$folder/change" 4<"$folder/said"
  read -r -t 30 word <&4
  [ "$word" = ready ]
  ip -n "$left" addr add 10.96.0.1 peer 10.96.0.2 dev long
  ip -n "$right" addr add 10.96.0.2 peer 10.96.0.1 dev long
  for host in "$left" "$right"; do ip -n "$host" link set long up txqueuelen 10000; done
}

# From here on; what the link does not know any more was lost with the one before.
change_link() {
  local word
  echo "rate_mbit=200 jitter_us=0 loss_ppm=0 duplicate_ppm=0 late_ppm=0 $1" >&3
  read -r -t 30 word <&4
  case $word in error*) echo "long_link: $word" >&2 && exit 2 ;; esac
}

# "STREAMS MBITS" of the best.
iperf_best() {
  local streams word
  mkfifo "$folder/heard"
  for streams in 1 2 4 8 16; do
    ip netns exec "$right" timeout 120 iperf3 -s -1 --forceflush >"$folder/heard" &
    server=$!
    exec 5<"$folder/heard"
    while read -r -t 30 word <&5 && [[ $word != *listening* ]]; do :; done
    ip netns exec "$left" timeout 120 iperf3 -c 10.96.0.2 -P "$streams" -O "$warm" -t "$seconds" -J >"$folder/iperf.$streams" ||
      cat "$folder/iperf.$streams" >&2
    cat <&5 >/dev/null
    wait "$server"
    server=
  done
  rm "$folder/heard"
  python3 - "$folder" <<'END'
import json, sys
best = max((json.load(open(f"{sys.argv[1]}/iperf.{n}"))["end"]["sum_received"]["bits_per_second"] / 1e6, n)
           for n in (1, 2, 4, 8, 16))
print(best[1], round(best[0], 1))
END
}

start_link "${profiles[0]}"
available=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
for control in ${LONG_LINK_CONTROLS:-cubic bbr}; do
  if [[ " $available " != *" $control "* ]]; then continue; fi
  # By the route: a namespace may not choose from all that the kernel has.
  ip -n "$left" route replace 10.96.0.2 dev long src 10.96.0.1 congctl "$control"
  ip -n "$right" route replace 10.96.0.1 dev long src 10.96.0.2 congctl "$control"
  for profile in "${profiles[@]}"; do
    for _ in $(seq "${LONG_LINK_ROUNDS:-1}"); do
      change_link "$profile"
      best=$(iperf_best)
      perf_between 10.96.0.1 10.96.0.2 --op write,read --size 1M --depth 64 --duration "$seconds"
      line="$control, $profile: iperf3 with ${best% *} streams ${best#* } Mbit/s"
      while read -r operation sum; do
        line+=$(python3 -c "print(f'; $operation {$sum:.0f}, {$sum / ${best#* }:.2f}')")
      done < <(perf_sums)
      echo "$line"
    done
  done
done
