#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# What a peer costs an endpoint: docs/scale.md has the figures. Usage: scale.sh [PEERS], 1000 by default. Builds by the
# release preset.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/steps.sh
use_compiler_cache
cmake --preset release >/dev/null
cmake --build --preset release --target load_integration_test
test=build/release/tests/integration/load_integration_test
P2P_SCALE_PEERS=${1:-1000} $test --gtest_brief=1 --gtest_filter='Scale.*'
$test --gtest_brief=1 --gtest_filter='Flood*Rate*'
$test --gtest_brief=1 --gtest_filter='Churn.*:Idle.*'
