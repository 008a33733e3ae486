#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/softgpu.sh [SEED [SECONDS]]
# What needs GPUs, on emulated ones (tests/softgpu), optimised: CTest's label softgpu, then chaos with memory of all kinds,
# from SEED on (a fresh one) for so long (60). SOFTGPU_PRESET=dev or tsan: with that one's sanitizer. Without the
# headers of a CUDA toolkit there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache

preset=${SOFTGPU_PRESET:-softgpu}
configure_soft_gpus "$preset" >/dev/null
if ! has_soft_gpus "$preset"; then exit 0; fi
cmake --build --preset "$preset" --target softgpu_tests
export UCCL_P2P_LOG_LEVEL=${UCCL_P2P_LOG_LEVEL:-error}
failed=0
ctest --test-dir "build/$preset" -L softgpu -j $((2 * $(nproc))) --output-on-failure || failed=1

chaos=build/$preset/tests/chaos/chaos
# Those that CTest has, each with one of the runs.
mapfile -t settings < <(ctest --test-dir "build/$preset" -N -R '^softgpu\.chaos\.' | sed -n 's/.*softgpu\.chaos\.[a-z]*\.//p')
((${#settings[@]})) || { echo "softgpu: no test of chaos" >&2; exit 1; }
seed=${1:-$((RANDOM * 32768 + RANDOM))}
end=$((SECONDS + ${2:-60}))
while ((SECONDS < end)); do
  for run in kill cancel stop leave; do
    for setting in "${settings[@]}"; do "$chaos" "$run" "$setting" "$seed" 1000 3 || failed=1; done
  done
  seed=$((seed + 1))
done
exit $failed
