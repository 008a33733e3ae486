#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/rdma_tests.sh PART...
# The RDMA tests, on this machine: what scripts/test_rdma.sh runs in the one of scripts/rdma_vm.sh. Parts:
#   device        that the device refuses wrong keys and ranges, and that channels are repaired
#   conformance   the suite of all transports, over rdma, on one device and on two
#   integration   two processes: routes, links that go down, the death of the peer, keys
#   detour        two processes: all devices are lost in the middle of everything, and tcp carries on
#   perf          p2p-perf over rdma and both devices, every byte verified
#   python        the package's one-sided, two-sided and asynchronous operations; UCCL_P2P_VENV has the package
#   doctor        p2p-doctor measures rdma; UCCL_P2P_VENV likewise
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=build/release
failed=()

# gtest TITLE PROGRAM [ARGUMENT...]: passes if tests ran and none was skipped, except where a test says that it is not
# for rdma.
gtest() {
  local title=$1 log status=0
  shift
  log=$(mktemp)
  "$@" --gtest_brief=1 >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ] || ! grep -q 'PASSED' "$log"; then
    cat "$log"
    return 1
  fi
  # Counts, and all reasons for skipping.
  grep -E 'tests ran|SKIPPED' "$log" | sort | uniq -c | sort -rn
  if grep -E 'RDMA (device|port|library)|needs the links' "$log"; then
    echo "tests were skipped that must run here"
    return 1
  fi
  echo "rdma: $title: $(sed -n 's/.*PASSED.*] \([0-9]*\) tests\{0,1\}\./\1/p' "$log") passed"
}

part_device() { gtest "device tests" $build/src/transport/rdma/rdma_device_test; }

part_conformance() {
  local suite=$build/tests/conformance/conformance_test
  UCCL_P2P_RDMA_DEVICES=rxe0 gtest "conformance on one device" $suite '--gtest_filter=*/rdma' &&
    gtest "conformance on two devices" $suite '--gtest_filter=*/rdma'
}

part_integration() { gtest "integration tests" $build/tests/integration/rdma_integration_test "--gtest_filter=-RdmaDetour*"; }

part_detour() { gtest "detour tests" $build/tests/integration/rdma_integration_test "--gtest_filter=RdmaDetour*"; }

part_perf() {
  local perf=$build/tools/perf/p2p-perf log
  log=$(mktemp)
  {
    $perf local --transport rdma --op write,read,send --size 16M --duration 0.2 --depth 2 &&
      $perf local --transport rdma --op write,read,send --size 4K --blocks 4096 --duration 0.2
  } 2>&1 | tee "$log" || return
  grep -q '^route: rdma: .*rxe0:1 .*; rxe1:1 ' "$log" || {
    echo "the route is not rdma over both devices"
    return 1
  }
}

# What depends on the time that things take, and the largest list, are left to faster machines.
part_python() {
  local log tests=python/tests
  log=$(mktemp)
  UCCL_P2P_TRANSPORT=rdma UCCL_P2P_REQUIRE=1 P2P_REQUIRED_ROUTE=rdma UCCL_P2P_KEEPALIVE_MS=20000 \
    UCCL_P2P_CONNECT_TIMEOUT_MS=60000 PYTHONDONTWRITEBYTECODE=1 \
    "$UCCL_P2P_VENV/bin/python" -m pytest -q -p no:cacheprovider --timeout 300 --durations 5 \
    -k 'not tcp and not hundred_thousand and not restarted and not prompt' \
    $tests/test_one_sided.py $tests/test_two_sided.py \
    $tests/test_transfers.py::test_{polling,cancel,await,many_transfers_at_once} |
    tee "$log" || return
  if grep -E '^[0-9]+ .*skipped' "$log"; then
    echo "tests were skipped that must run here"
    return 1
  fi
}

part_doctor() {
  local log
  log=$(mktemp)
  UCCL_P2P_KEEPALIVE_MS=20000 UCCL_P2P_CONNECT_TIMEOUT_MS=60000 PYTHONDONTWRITEBYTECODE=1 \
    "$UCCL_P2P_VENV/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_doctor.py::test_rdma_is_measured |
    tee "$log" && grep -q '^1 passed' "$log"
}

begun=0
for part in "$@"; do
  start=$SECONDS
  echo "rdma: $part, $((begun += 1)) of $#"
  if "part_$part"; then
    echo "rdma: $part: ok, $((SECONDS - start)) s"
  else
    echo "rdma: $part: FAILED, $((SECONDS - start)) s"
    failed+=("$part")
  fi
done
if [ $# -eq 0 ] || [ ${#failed[@]} -ne 0 ]; then
  echo "rdma: FAILED: ${failed[*]:-no part was named}"
  exit 1
fi
echo "rdma: all passed"
