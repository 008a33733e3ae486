#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/fuzz.sh [FUZZER...]
# Runs the fuzzers that the preset `dev` built, each for FUZZ_SECONDS (60), as many at a time as there are
# cores. They start from fuzz/corpus/NAME; what they find stays in build/fuzz.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seconds=${FUZZ_SECONDS:-60}

fuzz_one() {
  local name=$1 found=build/fuzz/found/$1 log=build/fuzz/found/$1.log
  mkdir -p "$found"
  if timeout --kill-after=10 $(($2 + 120)) "build/dev/fuzz/fuzz_$name" -max_total_time="$2" -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build/fuzz/found/$name-" \
    "$found" "fuzz/corpus/$name" >"$log" 2>&1; then
    echo "fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, nothing found"
  else
    echo "fuzz_$name: FAILED"
    tail -n 40 "$log"
    return 1
  fi
}

if [ "${1:-}" = --one ]; then
  fuzz_one "$2" "$3"
  exit
fi

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for folder in fuzz/corpus/*/; do names+=("$(basename "$folder")"); done
fi
cores=$(nproc)
turns=$(((${#names[@]} + cores - 1) / cores))
echo "fuzz: ${#names[@]} fuzzers, $cores at a time, $seconds s each: $((turns * seconds)) s and a little"
printf '%s\n' "${names[@]}" | xargs -P "$cores" -I{} bash "$0" --one {} "$seconds" |
  awk -v all="${#names[@]}" '/^fuzz_[a-z0-9_]+: / { printf "%s (%d of %d)\n", $0, ++done, all; fflush(); next } { print; fflush() }'
