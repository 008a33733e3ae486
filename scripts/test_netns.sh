#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Runs p2p-perf between two hosts: network namespaces joined by a veth pair. Every row is verified.
# Usage: test_netns.sh [PATH/TO/p2p-perf], by default the release preset's, which is built if need be.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh

if [[ $(id -u) -ne 0 ]]; then
  echo "test_netns: skipped: network namespaces need root"
  exit 0
fi
perf=${1:-build/release/tools/perf/p2p-perf}
if [[ ! -x $perf ]]; then
  cmake --preset release
  cmake --build --preset release --target p2p-perf
fi
two_hosts p2p 10.98.0

(umask 077 && head -c 32 /dev/urandom | base64 >"$folder/key")
export UCCL_P2P_KEY_FILE=$folder/key

# pair CLIENT_OPTIONS...: one server, one client; both must succeed.
pair() {
  local words
  mkfifo "$folder/said"
  ip netns exec "$right" timeout 120 "$perf" server --listen 10.98.0.2 --port 0 --streams 3 >"$folder/said" &
  server=$!
  read -r -t 30 words <"$folder/said"
  rm "$folder/said"
  UCCL_P2P_LISTEN_ADDRESS=10.98.0.1 \
    ip netns exec "$left" timeout 120 "$perf" client 10.98.0.2 --port "${words##*:}" --transport tcp --verify "$@"
  wait "$server"
  server=
}

pair --op write,read,send --size 1,4K,100001,1M,16M --duration 0.2
pair --op write,read,send --size 4K --blocks 2000 --duration 0.2
pair --op write --size 1M --streams 3 --duration 0.2
echo "test_netns: passed"
