#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/test.sh [PART...]
# All tests (`make test`), or the named parts. Each part has a time limit, a log in build/logs and a verdict.
#   dev       unit, conformance and integration tests with the address and undefined-behaviour sanitizers
#   tsan      the same with the thread sanitizer
#   release   the same optimised, and installing
#   lint      layers, sizes, pages, format, spelling, shell, Doxygen; clang: warnings, thread safety, clang-tidy
#   fuzz      every fuzzer for FUZZ_SECONDS (60), from the committed corpus
#   NAME      scripts/test_NAME.sh; all of them run by default
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache

# Many tests wait for most of their time: for a keepalive, for a peer that stands still.
jobs=$((2 * $(nproc)))

build_and_ctest() {
  cmake --preset "$1" && cmake --build --preset "$1" && ctest --preset "$1" -j "$jobs" -LE lint
}

# The checks that CTest also knows (label lint) run once, with the optimised build.
part_release() { build_and_ctest release && ctest --preset release -L lint; }
part_dev() { build_and_ctest dev; }

# Without the transfers of over 4 GiB (label slow): the sanitizer keeps several bytes for each that they touch.
# The thread sanitizer of g++ 12 cannot place its memory where the kernel randomises addresses by 32 bits.
part_tsan() {
  local runner=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then runner=(setarch "$(uname -m)" -R); fi
  cmake --preset tsan && cmake --build --preset tsan && "${runner[@]}" ctest --preset tsan -j "$jobs" -LE 'lint|slow'
}

part_lint() { cmake --preset lint && scripts/lint.sh build/lint; }
part_fuzz() { cmake --preset dev && cmake --build --preset dev && scripts/fuzz.sh; }

run_part() {
  if declare -F "part_$1" >/dev/null; then
    "part_$1"
  elif [ -x "scripts/test_$1.sh" ]; then
    "scripts/test_$1.sh"
  else
    echo "test: no part called $1" >&2
    return 2
  fi
}

if [ "${1:-}" = --inside ]; then
  run_part "$2"
  exit
fi

# Seconds after which a part counts as hung. About three times what it takes on two cores with nothing compiled before.
limit_of() {
  case $1 in
    dev | tsan | lint) echo 3600 ;;
    release | python | nixl | rdma | aarch64) echo 2700 ;;
    *) echo 1350 ;;
  esac
}

parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then
  scripts/setup.sh test || exit 1
  parts=(dev tsan release lint fuzz)
  for script in scripts/test_*.sh; do
    name=${script#scripts/test_}
    name=${name%.sh}
    if [ -x "$script" ]; then parts+=("$name"); fi
  done
fi

start=$SECONDS
echo "test: ${parts[*]}"
for part in "${parts[@]}"; do
  step "$part" "$(limit_of "$part")" bash "$0" --inside "$part"
done
if [ ${#failed_steps[@]} -ne 0 ]; then
  for part in "${failed_steps[@]}"; do
    echo "$part, build/logs/$part.log:"
    failures_of "build/logs/$part.log"
  done
  echo "test: FAILED: ${failed_steps[*]} ($((SECONDS - start)) s)"
  exit 1
fi
echo "test: all ${#parts[@]} parts passed ($((SECONDS - start)) s)"
