#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Installs the Python package, which brings the NIXL backend, and runs the backend's tests against NIXL's own
# wheels, all at once; arguments go to pytest. NIXL_VERSIONS: which, by default the oldest and newest of
# those that are supported and one between. NIXL_TEST_INSTALLED=1: as the package is installed already. TORCH as in
# test_python.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p
export UCCL_P2P_VENV=${UCCL_P2P_VENV:-$cache/venv}
python=$UCCL_P2P_VENV/bin/python
if [ -z "${NIXL_TEST_INSTALLED:-}" ]; then
  scripts/python_environment.sh pytest pytest-timeout numpy "${TORCH:-torch==2.13.0}"
fi

# A folder for each version, since one environment holds one. Their dependencies are those of the environment.
wheel() {
  local folder=$cache/nixl/$1
  if [ ! -f "$folder/complete" ]; then
    rm -rf "$folder"
    "$python" -m pip --disable-pip-version-check -q install --no-deps --target "$folder" "nixl-cu13==$1"
    touch "$folder/complete"
  fi
  echo "$folder"
}

NIXL_PLUGIN_DIR=$("$python" -c 'from uccl import nixl; print(nixl.plugin().parent)')
export NIXL_PLUGIN_DIR

# All versions at once: their tests wait for most of their time.
run() {
  PYTHONPATH=$(wheel "$1"):$PWD/nixl/tests:$PWD/tests/support "$python" -m pytest nixl/tests --rootdir nixl/tests -q -p no:cacheprovider -o timeout=120 "${@:2}"
}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
read -ra versions <<<"${NIXL_VERSIONS:-1.0.0 1.4.1 1.5.1}"
declare -A runs
for version in "${versions[@]}"; do
  run "$version" "$@" >"$logs/$version" 2>&1 &
  runs[$version]=$!
done
failed=()
for version in "${versions[@]}"; do
  wait "${runs[$version]}" || failed+=("$version")
  echo "NIXL $version"
  cat "$logs/$version"
done
if [ ${#failed[@]} -ne 0 ]; then
  echo "test_nixl: FAILED with NIXL ${failed[*]}"
  exit 1
fi
