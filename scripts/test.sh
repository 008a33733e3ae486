#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/test.sh [test|all|PART...]
# `make test` runs the parts of `test` (default), `make test-all` those and all others, except those that have passed on
# this very tree before. Each part has a time limit, a log in build/logs and a verdict. With BUILD_AHEAD=1 what `all`
# needs is built as well, for as long as the tests take.
#   release   of `test`: unit, conformance and integration tests, optimised, and installing
#   python    of `test`: the Python package's tests
#   nixl      of `test`: the NIXL backend's
#   large     transfers of over 4 GiB, and what CTest knows of the checks, by the build of `release`
#   dev       all of `release` with the address and undefined-behaviour sanitizers, and what needs GPUs, on emulated ones
#   tsan      tests with threads of their own, and what needs GPUs, with the thread sanitizer
#   lint      layers, sizes, pages, format, spelling, shell, Doxygen; clang: warnings, thread safety, clang-tidy
#   fuzz      every fuzzer for FUZZ_SECONDS (60; among all parts 20), from the committed corpus
#   NAME      scripts/test_NAME.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache

# Many tests wait for most of their time: for a keepalive, for a peer that stands still.
jobs=$((3 * $(nproc)))
jobs_optimised=$((4 * $(nproc)))

# run_ctest PRESET OPTION...: and what took longest.
run_ctest() {
  local preset=$1
  shift
  ctest --preset "$preset" -j "$jobs" --output-junit "$PWD/build/logs/$preset.xml" "$@"
  local status=$?
  scripts/slowest.py "build/logs/$preset.xml" 8
  return $status
}

# What CTest runs; then what else there is of that build: GPU tests, micro benchmarks, each header by itself.
build_release() { cmake --preset release -DP2P_LONE_PROGRAMS=OFF -DP2P_BENCH=OFF && cmake --build build/release; }
build_release_rest() { cmake --preset release && cmake --build --preset release; }
build_dev() { configure_soft_gpus dev && cmake --build --preset dev; }
build_python() { scripts/test_python.sh --install; }
build_tsan() { configure_soft_gpus tsan && cmake --build --preset tsan; }
# While the tests of others wait.
build_lint() { cmake --preset lint && scripts/lint.sh build/lint; }
build_aarch64() { scripts/test_aarch64.sh; }

# Without the transfers of over 4 GiB (label slow): a sanitizer keeps several bytes for each that they touch.
part_release() { jobs=$jobs_optimised run_ctest release -LE 'lint|slow'; }
part_large() {
  run_ctest release -L 'lint|slow' &&
    P2P_FLOOD_PEERS=3000 build/release/tests/integration/load_integration_test --gtest_brief=1 --gtest_filter='*HalfOpen*' &&
    P2P_WEIGHTS_SEEDS=60 build/release/tests/weights/weights_move_test --gtest_brief=1 --gtest_filter='*Random*:*Killed*'
}
part_dev() { has_soft_gpus dev; run_ctest dev -LE 'lint|slow'; }
part_tsan() { has_soft_gpus tsan; run_ctest tsan -LE 'lint|slow|softgpu_long'; }
part_lint() { cat build/logs/build_lint.log; }
part_aarch64() { cat build/logs/build_aarch64.log; }
part_fuzz() { scripts/fuzz.sh; }

# What a part is built by, if anything is.
build_of() {
  case $1 in
    release | dev | tsan | aarch64 | lint) echo "$1" ;;
    python | nixl) echo python ;;
    large | rdma | chaos | netns | tcpx) echo release_rest ;;
    fuzz) echo dev ;;
  esac
}

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

case ${1:-} in
  --build)
    "build_$2"
    exit
    ;;
  --build-ahead)
    for build in release_rest dev tsan; do
      bash "$0" --build "$build" >"build/logs/build_$build.log" 2>&1 </dev/null
    done
    exit
    ;;
  --part)
    run_part "$2"
    exit
    ;;
esac

# Seconds after which a part counts as hung. Three times and more what it takes on two cores.
limit_of() {
  case $1 in
    lint) echo 3600 ;;
    release | dev | tsan | python | nixl | rdma | aarch64) echo 2700 ;;
    *) echo 1800 ;;
  esac
}
build_limit=3600

# The tree as it is, of which a part has passed or not.
tree() {
  { git rev-parse HEAD && git diff HEAD && git ls-files -z --others --exclude-standard | xargs -0r sha1sum; } 2>/dev/null |
    sha1sum | cut -d' ' -f1
}

in_test=(release python nixl)
parts=("$@")
[ ${#parts[@]} -ne 0 ] || parts=(test)
case ${parts[*]} in
  test)
    scripts/setup.sh test || exit 1
    parts=("${in_test[@]}")
    ;;
  all)
    scripts/setup.sh test || exit 1
    export FUZZ_SECONDS=${FUZZ_SECONDS:-20}
    # In the order of their builds, which go on meanwhile: first what the build of `release` is for.
    others=(large netns tcpx rdma chaos stacks dev fuzz wheel tsan)
    for script in scripts/test_*.sh; do
      name=${script#scripts/test_}
      name=${name%.sh}
      if [[ -x $script && " ${in_test[*]} ${others[*]} " != *" $name "* ]]; then others+=("$name"); fi
    done
    parts=()
    passed=$(tree)
    for part in "${in_test[@]}" "${others[@]}" lint; do
      if [ "$(cat "build/logs/$part.passed" 2>/dev/null)" = "$passed" ]; then
        echo "test: $part has passed on this tree"
      else
        parts+=("$part")
      fi
    done
    ;;
esac

start=$SECONDS
of_tree=$(tree)
mkdir -p build/logs
echo "test: ${parts[*]}"

# Builds go on by themselves, one after the other and after all tests for the processor: most tests wait for most of
# their time.
builds=()
for part in "${parts[@]}"; do
  build=$(build_of "$part")
  if [[ -n $build && " ${builds[*]} " != *" $build "* ]]; then builds+=("$build"); fi
done
rm -f build/logs/build_*.status
(
  # What the Python package needs of PyPI comes meanwhile.
  packages=
  if [[ " ${builds[*]} " == *" python "* ]]; then
    UCCL_P2P_PACKAGES_ONLY=1 scripts/test_python.sh --install >build/logs/packages.log 2>&1 </dev/null &
    packages=$!
  fi
  for build in "${builds[@]}"; do
    if [ "$build" = python ]; then wait "$packages"; fi # what failed fails again
    begun=$SECONDS
    status=0
    timeout --kill-after=20 "$build_limit" nice bash "$0" --build "$build" >"build/logs/build_$build.log" 2>&1 </dev/null || status=$?
    echo "$status $((SECONDS - begun))" >"build/logs/build_$build.part"
    mv "build/logs/build_$build.part" "build/logs/build_$build.status"
  done
  if [ -n "${BUILD_AHEAD:-}" ]; then exec setsid nice bash "$0" --build-ahead; fi
) &
builder=$!

# built NAME: waits until that build has ended, and says how.
built() {
  local status seconds
  while [ ! -e "build/logs/build_$1.status" ] && kill -0 "$builder" 2>/dev/null; do sleep 0.2; done
  read -r status seconds <"build/logs/build_$1.status" || return 1
  if [[ ! " ${told[*]} " == *" $1 "* ]]; then
    told+=("$1")
    printf '  %-14s %-7s %4d s\n' "build $1" "$([ "$status" = 0 ] && echo ok || echo FAILED)" "$seconds"
    took+=("$seconds build $1")
    if [ "$status" != 0 ]; then tail -n "${STEP_TAIL:-40}" "build/logs/build_$1.log" | sed 's/^/  | /'; fi
  fi
  return "$status"
}

told=()
took=()
nixl= # its tests wait for most of their time, and so go on beside Python's
for part in "${parts[@]}"; do
  build=$(build_of "$part")
  if [ -n "$build" ] && ! built "$build"; then
    failed_steps+=("$part")
    echo "  $part: not run, since build $build failed"
    cp "build/logs/build_$build.log" "build/logs/$part.log"
    continue
  fi
  begun=$SECONDS
  if [[ $part = python && " ${parts[*]} " == *" python nixl "* ]]; then
    step nixl "$(limit_of nixl)" bash "$0" --part nixl >build/logs/nixl.step &
    nixl=$!
  fi
  status=0
  if [[ $part = nixl && -n $nixl ]]; then
    wait "$nixl" || { status=$? && failed_steps+=(nixl); }
    cat build/logs/nixl.step
  else
    step "$part" "$(limit_of "$part")" bash "$0" --part "$part" || status=$?
  fi
  if [ "$status" = 0 ]; then echo "$of_tree" >"build/logs/$part.passed"; fi
  took+=("$((SECONDS - begun)) $part")
done
{
  if [ -n "${BUILD_AHEAD:-}" ]; then kill -- "$builder" "-$builder"; fi
  wait
} 2>/dev/null # of what was stopped nobody needs to hear

echo "test: what took longest:"
printf '%s\n' "${took[@]}" | sort -rn | head -n 8 | while read -r seconds what; do printf '  %5d s  %s\n' "$seconds" "$what"; done
for part in "${parts[@]}"; do grep -hE '^slowest: ' "build/logs/$part.log" 2>/dev/null; done | sort -t' ' -k2 -rn | head -n 8 | sed 's/^slowest:/ /'
if [ ${#failed_steps[@]} -ne 0 ]; then
  for part in "${failed_steps[@]}"; do
    echo "$part, build/logs/$part.log:"
    failures_of "build/logs/$part.log"
  done
  echo "test: FAILED: ${failed_steps[*]} ($((SECONDS - start)) s)"
  exit 1
fi
echo "test: all ${#parts[@]} parts passed ($((SECONDS - start)) s)"
