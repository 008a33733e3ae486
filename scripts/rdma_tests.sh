#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/rdma_tests.sh [PART...]
# The RDMA tests, on this machine: what scripts/test_rdma.sh runs in the one of scripts/rdma_vm.sh. Parts:
#   device        that the device refuses wrong keys and ranges, and that channels are repaired
#   conformance   the suite of all transports, over rdma, on one device and on two
#   integration   two processes: routes, links that go down, the death of the peer, keys
#   perf          p2p-perf over rdma, every byte verified
#   python        the package's one-sided and two-sided tests; by name only, and after scripts/test_python.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=build/release
failed=()

# gtest PROGRAM [ARGUMENT...]: passes if tests ran and none was skipped, except where a test says that it is not for
# rdma.
gtest() {
  local log status=0
  log=$(mktemp)
  "$@" --gtest_brief=1 >"$log" 2>&1 || status=$?
  if [ "$status" -ne 0 ] || ! grep -q 'PASSED' "$log"; then
    cat "$log"
    return 1
  fi
  # Counts, and all reasons for skipping.
  grep -E 'tests ran|PASSED|SKIPPED' "$log" | sort | uniq -c | sort -rn
  if grep -E 'RDMA (device|port|library)|needs the links' "$log"; then
    echo "tests were skipped that must run here"
    return 1
  fi
}

part_device() { gtest $build/src/transport/rdma/rdma_device_test; }

part_conformance() {
  local suite=$build/tests/conformance/conformance_test
  UCCL_P2P_RDMA_DEVICES=rxe0 gtest $suite '--gtest_filter=*/rdma' && gtest $suite '--gtest_filter=*/rdma'
}

part_integration() { gtest $build/tests/integration/rdma_integration_test; }

part_perf() {
  local perf=$build/tools/perf/p2p-perf
  $perf local --transport rdma --op write,read,send --size 16M --duration 0.2 --depth 2 &&
    $perf local --transport rdma --op write,read,send --size 4K --blocks 4096 --duration 0.2
}

part_python() {
  local python=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}/bin/python
  UCCL_P2P_TRANSPORT=rdma PYTHONDONTWRITEBYTECODE=1 $python -m pytest -q -p no:cacheprovider -k 'not tcp' \
    python/tests/test_one_sided.py python/tests/test_two_sided.py
}

parts=("$@")
[ ${#parts[@]} -ne 0 ] || parts=(device conformance integration perf)
for part in "${parts[@]}"; do
  start=$SECONDS
  echo "rdma: $part"
  if "part_$part"; then
    echo "rdma: $part: ok, $((SECONDS - start)) s"
  else
    echo "rdma: $part: FAILED, $((SECONDS - start)) s"
    failed+=("$part")
  fi
done
if [ ${#failed[@]} -ne 0 ]; then
  echo "rdma: FAILED: ${failed[*]}"
  exit 1
fi
echo "rdma: all passed"
