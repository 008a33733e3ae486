#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Installs the Python package into an environment of its own and runs its tests; arguments go to pytest.
# --install: no tests.
# TORCH: which torch to test with, as pip takes it; PIP_INDEX_URL and so on are pip's own way to say where from.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${UCCL_P2P_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/venv}
UCCL_P2P_VENV=$venv scripts/python_environment.sh pytest pytest-timeout pytest-xdist numpy tqdm matplotlib mypy basedpyright prometheus_client kubernetes-validate "${TORCH:-torch==2.13.0}"
if [ "${1:-}" = --install ]; then exit 0; fi
# One more at a time than there are cores: many wait for half of their time.
exec "$venv/bin/python" -m pytest python/tests -n "$(($(nproc) + 1))" --dist worksteal "$@"
