#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_check.sh [--build DIR] [--out DIR] [--debs DIR] [--no-build] [--no-sanitizer] [--no-perf]
# On a machine with GPUs: builds (release), runs every test that uses them, memcheck and racecheck over the
# kernels, then p2p-perf between GPUs, and prints a table. Logs and the table go to --out. --debs unpacks
# development packages from there first, without installing them, for machines that lack some. Exits with 1 if
# any step failed; the others run all the same.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

build=build/gpu out=build/gpu/check debs='' compile=1 sanitizer=1 perf=1
while (($#)); do
  case $1 in
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --debs) debs=$2 && shift ;;
    --no-build) compile=0 ;;
    --no-sanitizer) sanitizer=0 ;;
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

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader | tee "$out/devices.txt"
nvidia-smi topo -m >"$out/topology.txt" 2>&1

if ((compile)); then
  options=()
  if [[ -n $debs ]]; then
    prefix=$build/packages
    mkdir -p "$prefix"
    for package in "$debs"/*.deb; do dpkg -x "$package" "$prefix"; done
    options+=("-DCMAKE_PREFIX_PATH=$prefix/usr" "-DOPENSSL_ROOT_DIR=$prefix/usr"
      "-DCMAKE_CXX_FLAGS=-isystem $prefix/usr/include/$(uname -m)-linux-gnu")
  fi
  run configure 120 cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DP2P_WERROR=ON "${options[@]}" ||
    tail -30 "$out/configure.log"
  run compile 500 ninja -k 0 -C "$build" || grep -E 'error|FAILED' "$out/compile.log" | head -40
fi

# The tests whose device halves are skipped elsewhere.
tests=(cuda_driver_test copy_test cuda_ipc_test tcp_device_path_test)
for test in "${tests[@]}"; do
  program=$(find "$build" -name "$test" -type f -perm -u+x | head -n 1)
  if [[ -z $program ]]; then
    echo "$test: not built" && failed=1
    continue
  fi
  run "$test" 240 "$program" --gtest_color=no ||
    grep -E -B12 '^\[  FAILED  \]' "$out/$test.log" | head -60
done
hardware=$(find "$build" -name 'gpu_*_test' -type f -perm -u+x)
for program in $hardware; do
  run "$(basename "$program")" 240 "$program" --gtest_color=no || tail -40 "$out/$(basename "$program").log"
done

if ((sanitizer)) && command -v compute-sanitizer >/dev/null; then
  kernels=$(find "$build" -name copy_test -type f -perm -u+x | head -n 1)
  for tool in memcheck racecheck; do
    run "$tool" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$kernels" \
      --gtest_filter='CopyKernel.*:-*OneGigabyte:*AnySizeAndAlignment' ||
      tail -20 "$out/$tool.log"
  done
fi

if ((perf)); then
  program=$(find "$build" -name p2p-perf -type f -perm -u+x | head -n 1)
  if [[ -z $program ]]; then
    echo "p2p-perf: not built" && failed=1
  else
    scripts/gpu_perf.sh "$program" "$out" || failed=1
  fi
fi
exit $failed
