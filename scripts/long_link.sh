#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/long_link.sh [PROFILE...]
#        scripts/long_link.sh --table [all | MTU,CONTROL,RTT,LOSS...]
# What p2p-perf moves with default options over a link that is long, thin or lossy, of the best that iperf3 reaches there
# with 1, 2, 4, 8 or 16 streams (LONG_LINK_STREAMS). PROFILE as of p2p_long_link (tests/support/link_way.h), such as
# "delay_us=10000 loss_ppm=1000", both for one way, and mtu=1460, of both ends (1500); by default those of
# docs/performance.md. Two hosts as network namespaces. For each of LONG_LINK_CONTROLS (cubic bbr, as far as the kernel has
# them) LONG_LINK_ROUNDS (1) times, LONG_LINK_SECONDS (6) each, after LONG_LINK_WARM (4) seconds of iperf3's and the
# transfers with which p2p-perf begins. iperf3's streams never wait for each other, so p2p-perf has 64 MiB in flight.
# --table: lines of a table, for such cells as 1460,bbr,2,0.01: RTT is the round trip's, in ms, half of it each way; LOSS
# is in percent of the packets of each way. The shares are the median of the rounds. Of MTU 1460, 1500, 8896 and 9001, both
# controls, 0.2, 2 and 20 ms, and 0, 0.01 and 0.1 %, it takes twenty, in at most ten minutes, or all 72, in half an hour:
# iperf3 with 1, 4 and 16 streams, 3 seconds each after one, and 16 MiB in flight.
# Needs root, /dev/net/tun, iperf3, and cores that are idle. Uses the release preset.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh
perf=build/release/tools/perf/p2p-perf
link=build/release/tests/support/p2p_long_link
table=
if [ "${1:-}" = --table ]; then
  table=yes
  shift
fi
usual=(6 4 64 "1 2 4 8 16")
if [ "$table" ]; then usual=(3 1 16 "1 4 16"); fi
seconds=${LONG_LINK_SECONDS:-${usual[0]}}
warm=${LONG_LINK_WARM:-${usual[1]}}
depth=${usual[2]}
read -ra streams_of_iperf <<<"${LONG_LINK_STREAMS:-${usual[3]}}"
profiles=("$@")
# shellcheck disable=SC2054 # braces multiply, commas are the words' own
if [ "$table" ] && [ ${#profiles[@]} -eq 0 ]; then
  profiles=({1460,1500,8896,9001},{cubic,bbr},2,0)
  for cell in 0.2,0 20,0 2,0.01 2,0.1 20,0.1; do profiles+=(1500,{cubic,bbr},"$cell"); done
  profiles+=(9001,{cubic,bbr},20,0.01)
elif [ "$table" ] && [ "$*" = all ]; then
  profiles=({1460,1500,8896,9001},{cubic,bbr},{0.2,2,20},{0,0.01,0.1})
elif [ ${#profiles[@]} -eq 0 ]; then
  for delay in 1000 10000 50000; do
    for loss in 0 1000 10000; do profiles+=("delay_us=$delay loss_ppm=$loss"); done
  done
  profiles+=("delay_us=10000 jitter_us=2000" "delay_us=10000 late_ppm=1000" "delay_us=10000 duplicate_ppm=10000")
fi
for tool in iperf3 "$perf" "$link"; do
  command -v "$tool" >/dev/null || { echo "long_link: '$tool' is missing" >&2 && exit 2; }
done

bare_hosts long

# The link; what carries its packets goes with the descriptor 3.
start_link() {
  local word host
  mkfifo "$folder/change" "$folder/said"
  "$link" "$left" "$right" 1 <"$folder/change" >"$folder/said" &
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
  local word host mtu=1500 words=
  for word in $1; do
    if [[ $word = mtu=* ]]; then mtu=${word#mtu=}; else words+=" $word"; fi
  done
  for host in "$left" "$right"; do ip -n "$host" link set long mtu "$mtu"; done
  echo "rate_mbit=200 jitter_us=0 loss_ppm=0 duplicate_ppm=0 late_ppm=0$words" >&3
  read -r -t 30 word <&4
  case $word in error*) echo "long_link: $word" >&2 && exit 2 ;; esac
}

# "STREAMS MBITS" of the best.
iperf_best() {
  local streams
  for streams in "${streams_of_iperf[@]}"; do
    IPERF_LIMIT=$((warm + seconds + 20)) iperf_between 10.96.0.1 10.96.0.2 "$folder/iperf.$streams" -P "$streams" -O "$warm" \
      -t "$seconds"
  done
  python3 - "$folder" "${streams_of_iperf[@]}" <<'END'
import json, sys
best = max((json.load(open(f"{sys.argv[1]}/iperf.{n}"))["end"]["sum_received"]["bits_per_second"] / 1e6, n)
           for n in sys.argv[2:])
print(best[1], round(best[0], 1))
END
}

# set_control NAME: by the route, since a namespace may not choose from all that the kernel has.
set_control() {
  ip -n "$left" route replace 10.96.0.2 dev long src 10.96.0.1 congctl "$1"
  ip -n "$right" route replace 10.96.0.1 dev long src 10.96.0.2 congctl "$1"
}

# measure PROFILE: $best, and "OPERATION MBITS SHARE" in $folder/shares, a line for each.
measure() {
  change_link "$1"
  best=$(iperf_best)
  perf_between 10.96.0.1 10.96.0.2 --op write,read --size 1M --depth "$depth" --duration "$seconds"
  perf_sums | while read -r operation sum; do
    python3 -c "print('$operation', f'{$sum:.0f} {$sum / ${best#* }:.3f}')"
  done >"$folder/shares"
}

# measure_cell MTU,CONTROL,RTT,LOSS: its line of the table.
measure_cell() {
  local mtu control trip loss rates=
  IFS=, read -r mtu control trip loss <<<"$1"
  if [[ " $available " != *" $control "* ]]; then
    echo "| $mtu | $control | $trip | $loss | the kernel has no $control | | |"
    return
  fi
  set_control "$control"
  : >"$folder/rounds"
  for _ in $(seq "${LONG_LINK_ROUNDS:-1}"); do
    measure "mtu=$mtu $(python3 -c "print(f'delay_us={$trip * 500:.0f} loss_ppm={$loss * 10000:.0f}')")"
    cat "$folder/shares" >>"$folder/rounds"
    rates+="${rates:+, }${best#* } (${best% *})"
  done
  python3 - "$folder/rounds" "| $mtu | $control | $trip | $loss | $rates" <<'END'
import statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
medians = [statistics.median(float(share) for name, _, share in rows if name == wanted) for wanted in ("write", "read")]
print(sys.argv[2], *(f"{median:.2f}" for median in medians), sep=" | ", end=" |\n")
END
}

start_link
available=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
if [ "$table" ]; then
  echo "| MTU | control | round trip, ms | lost, % | iperf3, Mbit/s (streams) | write | read |"
  echo "| --- | --- | --- | --- | --- | --- | --- |"
  for cell in "${profiles[@]}"; do measure_cell "$cell"; done
  exit
fi
for control in ${LONG_LINK_CONTROLS:-cubic bbr}; do
  if [[ " $available " != *" $control "* ]]; then continue; fi
  set_control "$control"
  for profile in "${profiles[@]}"; do
    for _ in $(seq "${LONG_LINK_ROUNDS:-1}"); do
      measure "$profile"
      line="$control, $profile: iperf3 with ${best% *} streams ${best#* } Mbit/s"
      while read -r operation sum share; do line+="; $operation $sum, $share"; done <"$folder/shares"
      echo "$line"
    done
  done
done
