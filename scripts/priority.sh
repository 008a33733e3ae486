#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/priority.sh [MBIT...]
# A transfer of 1 MiB of high priority at a time, alone and beside bulk transfers of low priority that would fill the link,
# between two network namespaces with a link of that rate (1000 and 5000) by tc tbf. Medians of PRIORITY_ROUNDS (5) rounds
# of PRIORITY_SECONDS (2) each: rows of the table in docs/performance.md. Needs root. Uses the release preset.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh
perf=build/release/tools/perf/p2p-perf
rates=("$@")
if [ ${#rates[@]} -eq 0 ]; then rates=(1000 5000); fi

two_hosts prio 10.97.0
for rate in "${rates[@]}"; do
  for host in "$left" "$right"; do
    ip netns exec "$host" tc qdisc replace dev cable root tbf rate "${rate}mbit" burst 256k latency 50ms
  done
  for operation in write read; do
    : >"$folder/all"
    for ((round = 0; round != ${PRIORITY_ROUNDS:-5}; ++round)); do
      for load in "--size 1M --depth 1 --priority high" "--size 16M --depth 2 --priority low" \
        "--size 1M --depth 1 --priority high --beside 4M" \
        "--size 1M --depth 1 --priority high --rate 20M --beside 4M"; do
        # shellcheck disable=SC2086
        perf_between 10.97.0.1 10.97.0.2 --op "$operation" --transport tcp --duration "${PRIORITY_SECONDS:-2}" $load
        cat "$folder/rows" >>"$folder/all"
      done
    done
    python3 - "$rate" "$operation" "$folder/all" <<'END'
import json, statistics, sys
rate, operation, path = sys.argv[1:]
rounds = list(zip(*[iter(json.loads(line) for line in open(path))] * 4))
middle = lambda values: statistics.median(values)
alone, beside = (middle(one[i]["latency_us_p99"] for one in rounds) for i in (0, 2))
share = [middle(one[i]["beside_gbytes_per_second"] / (one[1]["gbytes_per_second"] - one[i]["gbytes_per_second"]) for one in rounds)
         for i in (2, 3)]
print(f"| {rate} Mbit/s, {operation} | {alone / 1000:.1f} | {beside / 1000:.1f} ({beside / alone:.2f}) | {share[0]:.2f} | {share[1]:.2f} |")
END
  done
done
