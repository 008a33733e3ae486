#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_check.sh [--gpus 2|4] [--build DIR] [--out DIR] [--debs DIR] [--uccl DIR] [--no-build]
#                             [--no-tests] [--no-sanitizer] [--no-python] [--no-perf]
# On a machine with one GPU or more: builds (release), runs every test that uses them, memcheck and racecheck over
# the kernels, the Python package on GPU tensors where python3 has torch and nanobind, then measures and prints
# tables. --gpus takes the first two or four of the machine's, or fails; of four, what two processes do with a GPU
# each is also tested on the other two. Logs and figures go to --out. --debs unpacks development packages from there
# first, without installing them, for machines that lack some. --uccl measures UCCL's own package, unpacked in DIR
# together with the libraries that it needs (DIR/lib), beside this one. --no-build takes what lies in --build. Exits
# with 1 if any step failed; the others run all the same, where the tree can be configured. A test program of which
# every test was skipped has failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build/gpu out=build/gpu/check wanted='' debs='' uccl='' compile=1 run_tests=1 sanitizer=1 python=1 perf=1
while (($#)); do
  case $1 in
    --gpus) wanted=$2 && shift ;;
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --debs) debs=$2 && shift ;;
    --uccl) uccl=$(realpath "$2") && shift ;;
    --no-build) compile=0 ;;
    --no-tests) run_tests=0 ;;
    --no-sanitizer) sanitizer=0 ;;
    --no-python) python=0 ;;
    --no-perf) perf=0 ;;
    *) echo "gpu_check.sh: unknown argument $1" >&2 && exit 2 ;;
  esac
  shift
done
if [[ ! $wanted =~ ^[24]?$ ]]; then
  echo "gpu_check.sh: --gpus $wanted: two or four" >&2 && exit 2
fi
mkdir -p "$build" "$out"
rm -f "$out"/{perf,parts,nccl,python,python_ipc,python_lists,uccl}.json # of an earlier run
build=$(realpath "$build") out=$(realpath "$out")
failed=0

# count WORD NAME: the number of tests that GoogleTest says were PASSED or SKIPPED in a step's log.
count() {
  local number
  number=$(sed -n "s/^\[  $1  *\] \([0-9]*\) tests\{0,1\}.*/\1/p" "$out/$2.log" | tail -n 1)
  echo "${number:-0}"
}

# run NAME SECONDS COMMAND...: one line with outcome and time; the log is kept.
run() {
  local name=$1 limit=$2 start=$SECONDS outcome=ok tests=''
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
  local code=$?
  ((code == 0)) || outcome="FAILED ($code)"
  if grep -q '^\[==========\] .* ran\.' "$out/$name.log"; then
    tests="$(count PASSED "$name") passed, $(count SKIPPED "$name") skipped"
    if ((code == 0 && $(count PASSED "$name") == 0)); then
      outcome='FAILED (no test ran)' code=1
    fi
  fi
  ((code == 0)) || failed=1
  printf '%-36s %s (%d s) %s\n' "$name" "$outcome" $((SECONDS - start)) "$tests"
  return $code
}

# program NAME: where it was built; nothing and a failure if it was not.
program() {
  local found
  found=$(find "$build" -name "$1" -type f -perm -u+x | head -n 1)
  [[ -n $found ]] && echo "$found"
}

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader | tee "$out/devices.txt"
gpus=$(nvidia-smi -L | wc -l)
if [[ -n $wanted ]]; then
  if ((gpus < wanted)); then
    echo "gpu_check.sh: --gpus $wanted: this machine has $gpus" >&2 && exit 2
  fi
  gpus=$wanted
  CUDA_VISIBLE_DEVICES=$(seq -s , 0 $((gpus - 1)))
  export CUDA_VISIBLE_DEVICES
fi
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
    "${options[@]}" || { tail -30 "$out/configure.log"; exit 1; }
  run compile 500 ninja -k 0 -C "$build" || grep -E 'error|FAILED' "$out/compile.log" | head -40
  if ((has_python)); then
    run compile_python 300 scripts/gpu_python.sh "$build" "${options[@]}" || tail -20 "$out/compile_python.log"
  fi
fi

# The tests whose device halves are skipped elsewhere.
tests=(drivers_cuda_test copy_test standby_test copier_test job_test digester_test staging_pool_test lifetime_test
  cuda_ipc_test cuda_ipc_channel_test cuda_ipc_open_links_test cuda_ipc_neighbours_test tcp_device_memory_test unpacker_test
  conformance_test gpu_transfer_test gpu_stream_test weights_gpu_test engine_memory_test)
((run_tests)) || tests=()
for test in "${tests[@]}"; do
  filter='*'
  [[ $test != conformance_test ]] || filter='*DeviceConformance*'
  [[ $test != engine_memory_test ]] || filter='EndpointDigest.*'
  if ! path=$(program "$test"); then
    echo "$test: not built" && failed=1
    continue
  fi
  run "$test" 240 "$path" --gtest_color=no "--gtest_filter=$filter" ||
    grep -E -B12 '^\[  FAILED  \]' "$out/$test.log" | head -60
done

if ((run_tests && gpus == 4)); then
  for test in cuda_ipc_test gpu_transfer_test gpu_stream_test; do
    path=$(program "$test") || continue # said above
    CUDA_VISIBLE_DEVICES=2,3 run "${test}_others" 240 "$path" --gtest_color=no ||
      grep -E -B12 '^\[  FAILED  \]' "$out/${test}_others.log" | head -60
  done
fi

# sanitize TOOL NAME SECONDS PROGRAM FILTER: one program's tests under memcheck or racecheck.
sanitize() {
  local name=$1_$2 limit=$3 path
  if ! path=$(program "$4"); then
    echo "$4: not built" && failed=1
    return
  fi
  run "$name" "$limit" compute-sanitizer --tool "$1" --error-exitcode 9 "$path" --gtest_color=no "--gtest_filter=$5" ||
    tail -20 "$out/$name.log"
}

if ((sanitizer)) && ! command -v compute-sanitizer >/dev/null; then
  echo "compute-sanitizer: not found (--no-sanitizer leaves memcheck and racecheck out)" && failed=1
elif ((sanitizer)); then
  for tool in memcheck racecheck; do
    sanitize "$tool" copy 240 copy_test 'CopyKernel.*:-*OneGigabyte'
    # A call that the driver refuses counts as an error here.
    sanitize "$tool" unpacker 60 unpacker_test 'UnpackerOnDevice.*:-*CannotBeCopied*'
    GPU_UNPACK_ROUNDS=1 sanitize "$tool" unpack 90 gpu_unpack_test 'GpuUnpack.*'
  done
  # Three sizes of thirteen, at every alignment: a launch takes its time there.
  sizes=Bytes/CopyKernelOf.AnySizeAndAlignment
  sanitize memcheck alignment 240 copy_test "$sizes/17:$sizes/4097:$sizes/70001"
  # Under racecheck a launch returns when the kernel has ended, so that one that waits for orders gets none: its
  # races are looked for by a test of copy_test that orders before it launches.
  sanitize memcheck standby 240 standby_test 'OnDevice.AnySizeAndAlignment:OnDevice.TakesOrders*'
fi

if ((has_python)) && [[ -d $build/site ]]; then
  export PYTHONPATH=$build/site OMP_NUM_THREADS=1
  run python_tests 300 python3 -m pytest -q -p no:cacheprovider python/tests/test_gpu.py || tail -40 "$out/python_tests.log"
  run python_streams 200 python3 -m pytest -q -p no:cacheprovider python/tests/test_gpu_streams.py python/tests/test_gpu_weights.py ||
    tail -40 "$out/python_streams.log"
  ranks=(python3 -m torch.distributed.run --standalone --nproc_per_node=2)
  sizes=(--device gpu --sizes "64K,1M,256M" --iters 20 --quiet)
  if ((perf)); then
    ((gpus > 1)) || sizes+=(--local-gpu-idx 0) # both ranks
    run python 120 "${ranks[@]}" python/benchmarks/benchmark_uccl.py "${sizes[@]}" --json "$out/python.json" ||
      tail -20 "$out/python.log"
    run python_ipc 120 "${ranks[@]}" python/benchmarks/benchmark_uccl_write.py --ipc "${sizes[@]}" \
      --json "$out/python_ipc.json" || tail -20 "$out/python_ipc.log"
    any=(python/benchmarks/benchmark_any_uccl.py "${sizes[@]}")
    run python_lists 120 "${ranks[@]}" "${any[@]}" --lists "10000x16K,40960x4K" --json "$out/python_lists.json" ||
      tail -20 "$out/python_lists.log"
    if [[ -n $uccl ]]; then
      # It has to be told not to look for an RDMA NIC. Without lists: with 0.1.1 the wrong bytes arrived.
      PYTHONPATH=$uccl LD_LIBRARY_PATH=$uccl/lib:${LD_LIBRARY_PATH:-} UCCL_P2P_TRANSPORT=tcp \
        run uccl 120 "${ranks[@]}" "${any[@]}" --json "$out/uccl.json" || tail -20 "$out/uccl.log"
    fi
    if ((gpus > 1)); then
      run nccl 120 "${ranks[@]}" python/benchmarks/benchmark_nccl.py "${sizes[@]}" --json "$out/nccl.json" ||
        tail -20 "$out/nccl.log"
    else
      echo "nccl: skipped, its two ranks want a GPU each"
    fi
  fi
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
  run tcpx 260 scripts/gpu_tcpx.sh --build "$build" --out "$out/tcpx" || tail -60 "$out/tcpx.log"
  grep -E '^(figure|nccl) ' "$out/tcpx.log"
fi
exit $failed
