#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/softgpu.sh [SEED [SECONDS]], or --build, which only builds
# What needs GPUs, on emulated ones (tests/softgpu): test programs, then chaos with memory of all kinds, from SEED on
# (a fresh one) for so long (60). Builds by SOFTGPU_PRESET (softgpu; softgpu-address and softgpu-thread have sanitizers), which
# takes the headers of a CUDA toolkit: without one there is nothing to do.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache

# Without those that have no meaning there: a kernel that stands by is as late as a thread may be.
programs=(drivers_cuda_test copy_test copier_test job_test staging_pool_test lifetime_test unpacker_test digester_test cuda_ipc_test
  cuda_ipc_channel_test cuda_ipc_open_links_test cuda_ipc_neighbours_test tcp_device_memory_test
  conformance_test gpu_stream_test gpu_transfer_test weights_gpu_test engine_memory_test)
preset=${SOFTGPU_PRESET:-softgpu}
if ! command -v nvcc >/dev/null; then
  echo "softgpu: skipped: there is no CUDA toolkit"
  exit 0
fi
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target chaos tcpx p2p-perf nccl_net_soft tcpx_shy_plugin "${programs[@]}"
if [ "${1:-}" = --build ]; then exit 0; fi
export UCCL_P2P_LOG_LEVEL=${UCCL_P2P_LOG_LEVEL:-error}

failed=0
# check LOG PROGRAM FILTER [SETTING...]
check() {
  local log=build/$preset/$1.log found
  found=$(find "build/$preset" -name "$2" -type f -perm -u+x | head -n 1)
  if env "${@:4}" timeout --kill-after=10 600 "$found" --gtest_color=no "--gtest_filter=$3" >"$log" 2>&1; then
    grep -H '^\[  PASSED' "$log"
  else
    grep -H -E '^\[  (FAILED|PASSED)' "$log" | head -n 30
    failed=1
  fi
}
for program in "${programs[@]}"; do
  filter='-*Gi[bg]a*byte*' # they want the memory of a GPU
  if [[ $program == conformance_test ]]; then filter='*DeviceConformance*'; fi
  if [[ $program == engine_memory_test ]]; then filter='EndpointDigest.*'; fi
  check "$program" "$program" "$filter"
done
net=(SOFTNET_CUDA=1 SOFTNET_INTERFACES=lo "UCCL_P2P_NCCL_NET_PLUGIN=$PWD/build/$preset/softnet/libnccl-net-soft.so")
check nccl_net_unpack conformance_test '*DeviceConformance*/nccl_net_cuda*_cuda*' "${net[@]}"
check nccl_net_tcpxo conformance_test '*DeviceConformance*/nccl_net_cuda*_cuda*' "${net[@]}" SOFTNET_HABITS=tcpxo SOFTNET_NAME=FasTrak

# The program tcpx, the pages' commands, and the engine over a plugin of CUDA memory.
ctest --test-dir "build/$preset" -R '^tcpx\.(program|pages)$' --output-on-failure >"build/$preset/tcpx.log" 2>&1 || {
  tail -n 40 "build/$preset/tcpx.log"
  failed=1
}

chaos=build/$preset/tests/chaos/chaos
kinds=(cuda_cuda cuda_pooled mapped_mapped mapped_private private_cuda pooled_private cuda_host private_host)
seed=${1:-$((RANDOM * 32768 + RANDOM))}
end=$((SECONDS + ${2:-60}))
while ((SECONDS < end)); do
  for run in kill cancel stop leave; do
    for kind in "${kinds[@]}"; do
      for transport in best tcp; do
        "$chaos" "$run" "${transport}_$kind" "$seed" 1000 3 || failed=1
      done
    done
  done
  seed=$((seed + 1))
done
exit $failed
