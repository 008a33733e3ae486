#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Builds here, as far as the release build lacks it, and runs the RDMA tests in a machine that has RDMA devices
# (scripts/rdma_vm.sh). What cannot run fails, and says why: nothing is skipped. Arguments: the names of the parts of
# scripts/rdma_tests.sh, else all.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache
parts=("$@")
[ ${#parts[@]} -ne 0 ] || parts=(device conformance integration detour perf python doctor)
if [[ ! " ${parts[*]} " =~ ^(\ python|\ doctor)+\ $ ]]; then
  cmake --preset release >/dev/null
  cmake --build --preset release --target conformance_test rdma_device_test rdma_integration_test p2p-perf
fi
export UCCL_P2P_VENV=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
if [[ " ${parts[*]} " == *" python "* || " ${parts[*]} " == *" doctor "* ]]; then
  scripts/python_environment.sh pytest pytest-timeout numpy
fi
export RDMA_VM_SECONDS=${RDMA_VM_SECONDS:-1200}
scripts/rdma_vm.sh env UCCL_P2P_VENV="$UCCL_P2P_VENV" scripts/rdma_tests.sh "${parts[@]}"
