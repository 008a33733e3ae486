#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_check.sh [--build DIR] [--out DIR] [--debs DIR] [--no-build] [--no-tests] [--no-sanitizer]
#                             [--no-python] [--no-perf]
# On a machine with GPUs: builds (release), runs every test that uses them, memcheck and racecheck over the
# kernels, the Python package on GPU tensors where python3 has torch and nanobind, then measures and prints a
# table. Logs and figures go to --out. --debs unpacks development packages from there first, without installing
# them, for machines that lack some. --no-build takes what lies in --build. Exits with 1 if any step failed; the
# others run all the same.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build/gpu out=build/gpu/check debs='' compile=1 run_tests=1 sanitizer=1 python=1 perf=1
while (($#)); do
  case $1 in
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --debs) debs=$2 && shift ;;
    --no-build) compile=0 ;;
    --no-tests) run_tests=0 ;;
    --no-sanitizer) sanitizer=0 ;;
    --no-python) python=0 ;;
    --no-perf) perf=0 ;;
    *) echo "gpu_check.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
mkdir -p "$build" "$out"
build=$(realpath "$build") out=$(realpath "$out")
failed=0

# run NAME SECONDS COMMAND...: one line with outcome and time; the log is kept.
run() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  ((code == 0)) || failed=1
  printf '%-36s %s (%d s)%s\n' "$name" "$( ((code == 0)) && echo ok || echo "FAILED ($code)")" \
    $((SECONDS - start)) "$(sed -n 's/^\[  \(PASSED\|SKIPPED\|FAILED\)  *\] \([0-9]* test[s]*\).*/ \1 \2/p' "$out/$name.log" | tr '\n' ' ')"
  return $code
}

# program NAME: where it was built; nothing and a failure if it was not.
program() {
  local found
  found=$(find "$build" -name "$1" -type f -perm -u+x | head -n 1)
  [[ -n $found ]] && echo "$found"
}

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader | tee "$out/devices.txt"
nvidia-smi topo -m >"$out/topology.txt" 2>&1
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

has_python=0
if ((python)); then
  if python3 -c 'import torch, nanobind, pytest; assert torch.cuda.is_available()' 2>/dev/null; then
    has_python=1
  else
    echo "python: skipped, python3 lacks torch with a GPU, nanobind or pytest"
  fi
fi

if ((compile)); then
  options=()
  if [[ -n $debs ]]; then
    prefix=$build/packages
    mkdir -p "$prefix"
    for package in "$debs"/*.deb; do dpkg -x "$package" "$prefix"; done
    options+=("-DCMAKE_PREFIX_PATH=$prefix/usr" "-DOPENSSL_ROOT_DIR=$prefix/usr"
      "-DCMAKE_CXX_FLAGS=-isystem $prefix/usr/include/$(uname -m)-linux-gnu")
  fi
  run configure 120 cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DP2P_WERROR=ON -DP2P_BENCH=ON \
    "${options[@]}" || tail -30 "$out/configure.log"
  run compile 500 ninja -k 0 -C "$build" || grep -E 'error|FAILED' "$out/compile.log" | head -40
  if ((has_python)); then
    run compile_python 300 scripts/gpu_python.sh "$build" "${options[@]}" || tail -20 "$out/compile_python.log"
  fi
fi

# The tests whose device halves are skipped elsewhere.
tests=(cuda_driver_test copy_test standby_test copier_test staging_pool_test thresholds_test cuda_ipc_test
  cuda_ipc_neighbours_test tcp_device_path_test conformance_test)
((run_tests)) || tests=()
for test in "${tests[@]}"; do
  filter='*'
  [[ $test != conformance_test ]] || filter='*DeviceConformance*'
  if ! path=$(program "$test"); then
    echo "$test: not built" && failed=1
    continue
  fi
  run "$test" 240 "$path" --gtest_color=no "--gtest_filter=$filter" ||
    grep -E -B12 '^\[  FAILED  \]' "$out/$test.log" | head -60
done

if ((sanitizer)) && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "${tool}_copy" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$(program copy_test)" \
      --gtest_filter='CopyKernel.*:-*OneGigabyte:*AnySizeAndAlignment' || tail -20 "$out/${tool}_copy.log"
  done
  # Under racecheck a launch returns when the kernel has ended, so that one that waits for orders gets none: its
  # races are looked for by a test of copy_test that orders before it launches.
  run memcheck_standby 240 compute-sanitizer --tool memcheck --error-exitcode 9 "$(program standby_test)" \
    --gtest_filter='OnDevice.AnySizeAndAlignment:OnDevice.TakesOrders*' || tail -20 "$out/memcheck_standby.log"
fi

if ((has_python)) && [[ -d $build/site ]]; then
  export PYTHONPATH=$build/site OMP_NUM_THREADS=1
  run python_tests 300 python3 -m pytest -q -p no:cacheprovider python/tests/test_gpu.py || tail -40 "$out/python_tests.log"
  ranks=(python3 -m torch.distributed.run --standalone --nproc_per_node=2)
  sizes=(--device gpu --sizes "64K,1M,256M" --iters 20 --quiet)
  ((perf)) && {
    run uccl 120 "${ranks[@]}" python/benchmarks/benchmark_uccl.py "${sizes[@]}" --json "$out/uccl.json" || tail -20 "$out/uccl.log"
    run uccl_ipc 120 "${ranks[@]}" python/benchmarks/benchmark_uccl_write.py --ipc "${sizes[@]}" --json "$out/uccl_ipc.json" ||
      tail -20 "$out/uccl_ipc.log"
    run nccl 120 "${ranks[@]}" python/benchmarks/benchmark_nccl.py "${sizes[@]}" --json "$out/nccl.json" || tail -20 "$out/nccl.log"
  }
fi

if ((perf)); then
  if parts=$(program gpu_copy_bench) && perf_program=$(program p2p-perf); then
    run parts 120 "$parts" "$out/parts.json" || tail -5 "$out/parts.log"
    run perf 400 scripts/gpu_perf.sh "$perf_program" "$out" || tail -40 "$out/perf.log"
    python3 scripts/gpu_table.py "$out" | tee "$out/table.txt" || failed=1
  else
    echo "p2p-perf or gpu_copy_bench: not built" && failed=1
  fi
fi

# Net plugins, and NCCL over ours.
if ((run_tests)); then
  run tcpx 200 scripts/gpu_tcpx.sh --build "$build" --out "$out/tcpx" || tail -60 "$out/tcpx.log"
  grep -E '^(figure|nccl) ' "$out/tcpx.log"
fi
exit $failed
