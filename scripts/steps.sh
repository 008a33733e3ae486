# shellcheck shell=bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that show a newcomer short lines: a step's output goes to a log, of which only the
# closing lines of test runners are shown, or the end if the step fails.

log_folder=build/logs
failed_steps=()

# The lines with which ctest, pytest, unittest, scripts/lint.sh and scripts/rdma_tests.sh sum up.
closing_lines='% tests passed|tests failed out of|^=+ .*(passed|failed|error).* =+$|^[0-9]+ (passed|failed).* in [0-9.]+s|^NIXL [0-9.]+$|^(OK|FAILED)( \(.*\))?$|^Ran [0-9]+ tests|^lint: |^fuzz_|^rdma: .*(passed|ok,|FAILED)|^aarch64: |^softgpu: '

# How tests, compilers and checks name what failed.
failed_lines='\((Failed|Timeout|SEGFAULT|Subprocess aborted|Not Run|ILLEGAL|Exception.*)\)( |$)|^(FAILED|ERROR) |(error|Failure): |: Failure$|^fuzz_.*FAILED|^ +[a-z-]+ +FAILED'

# failures_of LOG: those lines, each once.
failures_of() { grep -E "$failed_lines" "$1" | awk '!seen[$0]++' | tail -n 30 | sed 's/^/  > /'; }

# step NAME SECONDS COMMAND...: runs COMMAND for at most SECONDS; returns its status and notes a failure.
step() {
  local name=$1 limit=$2 start=$SECONDS log status=0
  shift 2
  mkdir -p "$log_folder"
  log=$log_folder/$name.log
  if [ -t 1 ]; then printf '  %-14s ...\r' "$name"; fi
  timeout --kill-after=20 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" -eq 0 ]; then
    printf '  %-14s ok      %4d s\n' "$name" $((SECONDS - start))
    grep -E "$closing_lines" "$log" || true
    return 0
  fi
  failed_steps+=("$name")
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    printf '  %-14s FAILED  %4d s: not done within %d s\n' "$name" $((SECONDS - start)) "$limit"
  else
    printf '  %-14s FAILED  %4d s: exit status %d\n' "$name" $((SECONDS - start)) "$status"
  fi
  grep -E "$closing_lines" "$log" || true
  echo "  --- the end of $log"
  grep -v '(Skipped)' "$log" | tail -n "${STEP_TAIL:-40}" | sed 's/^/  | /'
  return "$status"
}

# cuda_packages PYTHON: the folder of NVIDIA's packages of CUDA 12.9 for -DP2P_CUDA_PACKAGES, which PYTHON's pip fetches
# once: 130 MB. Any interpreter will do: nothing in them is Python.
cuda_packages() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/cuda-12.9
  if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    "$1" -m pip --disable-pip-version-check -q install --no-deps --only-binary :all: --target "$folder" \
      nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 \
      nvidia-nvfatbin-cu12==12.9.82 >&2 || return
    touch "$folder/complete"
  fi
  echo "$folder/nvidia"
}

# configure_soft_gpus PRESET: with emulated GPUs. They take the headers of a CUDA toolkit, or else of the packages that
# wheels are made with; where there are neither, the build has no emulated GPUs.
configure_soft_gpus() {
  local venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv} packages
  cmake --preset "$1" || return
  if has_soft_gpus "$1" >/dev/null; then return 0; fi
  if { [ -x "$venv/bin/python" ] || python3 -m venv "$venv"; } && packages=$(cuda_packages "$venv/bin/python"); then
    cmake --preset "$1" "-DP2P_CUDA_PACKAGES=$packages"
  fi
}

# has_soft_gpus PRESET: whether its build, which was configured, has emulated GPUs; says what is missing if not.
has_soft_gpus() {
  if cmake --build "build/$1" --target help | grep '^softgpu_tests: ' >/dev/null; then return 0; fi
  echo "softgpu: skipped: CUDA's headers are missing: no toolkit of 12.3 or newer, and no nvidia-cuda-runtime-cu12 from PyPI"
  return 1
}

# progress TEXT: what of a long work is done and what is left; in a terminal what is printed next takes its place, and
# else it is a line.
progress() {
  if [ -t 1 ]; then printf '\r\033[K%s\r' "$1"; else echo "$1"; fi
}

# Compilers' results are kept outside of the repository, and shared by its clones.
use_compiler_cache() {
  if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    export CXX=${CXX:-c++} # under one name: to the cache g++, which Python's builds take by themselves, is another compiler
    export CCACHE_SLOPPINESS=pch_defines,time_macros # precompiled headers (cmake/UnitTests.cmake)
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
  fi
}
