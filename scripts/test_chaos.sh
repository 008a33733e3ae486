#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Runs the chaos suite (tests/chaos): all runs with a fixed seed, then again and again with fresh ones for the rest of
# CHAOS_SECONDS (120), once at least; as many at a time as there are cores. CHAOS_SEED: the first of the fresh ones.
# CHAOS_ONLY: what has this in its "RUN SETTING". Builds by the release preset.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache
chaos=build/release/tests/chaos/chaos
export UCCL_P2P_LOG_LEVEL=${UCCL_P2P_LOG_LEVEL:-error}

# RUN SETTING SEED TIMES SECONDS
if [ "${1:-}" = --one ]; then
  shift
  progress "chaos: $(($(date +%s) - begun)) of $limit s; now $1 $2"
  if ! "$chaos" "$@"; then
    echo "chaos: FAILED; again: $chaos $*"
    exit 255 # xargs starts no more
  fi
  exit 0
fi
cmake --preset release >/dev/null
cmake --build --preset release --target chaos

# RUN, how often with the fixed seed, and the settings.
plan="kill 48 cma tcp1 tcp4 tcp2_tls nccl_net
cancel 1000 cma tcp1 tcp4 tcp2_tls nccl_net
stop 20 cma tcp2 tcp2_tls nccl_net
leave 24 cma tcp1 tcp4 tcp2_tls nccl_net
starve 16 cma tcp2
bad 400 cma tcp2 tcp2_tls nccl_net
soak 3 cma tcp2 tcp2_tls nccl_net
cut 24 cma tcp1 tcp4 tcp1_tls tcp4_tls nccl_net
rails 6 rails2 rails4
netem 6 long_cubic long_bbr"

# Cutting connections takes root and a kernel that does it, rails take network namespaces, long links a TUN device, too.
if [[ $(id -u) -ne 0 ]]; then
  echo "chaos: no cut, no rails and no netem: they need root"
  plan=${plan/cut */} # the last three
elif [[ ! -w /dev/net/tun ]]; then
  echo "chaos: no netem: there is no /dev/net/tun"
  plan=${plan/netem */}
fi
for control in cubic bbr; do
  if ! grep -qw "$control" /proc/sys/net/ipv4/tcp_available_congestion_control; then
    echo "chaos: no netem long_$control: the kernel has no $control"
    plan=${plan/ long_$control/}
  fi
done

# runs SEED TIMES_FACTOR SECONDS: each run, for at most so long, one a line.
runs() {
  local run times settings setting
  while read -r run times settings; do
    for setting in $settings; do
      if [[ "$run $setting" == *"${CHAOS_ONLY:-}"* ]]; then echo "$run $setting $1 $((times * $2)) $3"; fi
    done
  done <<<"$plan"
}

round() {
  runs "$@" | xargs -P "$(nproc)" -L 1 bash "$0" --one || exit 1
  ran=$((ran + $(runs "$@" | wc -l)))
}

ran=0
start=$SECONDS
begun=$(date +%s)
limit=${CHAOS_SECONDS:-120}
export begun limit
seed=${CHAOS_SEED:-$((RANDOM * 32768 + RANDOM))}
if [ -z "$(runs 1 1 10)" ]; then
  echo "chaos: no run is called ${CHAOS_ONLY:-}"
  exit 2
fi
round 1 1 10
each=$((limit / 36 > 3 ? limit / 36 : 3))
while true; do
  round "$seed" 1000 "$each"
  seed=$((seed + 1))
  if [ $((SECONDS - start)) -ge "$limit" ]; then break; fi
done
echo "chaos: all passed ($ran runs, $((SECONDS - start)) s)"
