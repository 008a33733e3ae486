#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Runs p2p-perf between two hosts: network namespaces joined by a veth pair; then between two unprivileged pods of one
# host, which share nothing but a folder. Every row is verified.
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

# What each of the two programs begins with, in its network namespace.
server_pod=() client_pod=()
server_memory=host

# pair CLIENT_OPTIONS...: one server, one client; both must succeed.
pair() {
  local words
  mkfifo "$folder/said"
  ip netns exec "$right" "${server_pod[@]}" timeout 120 "$perf" server --listen 10.98.0.2 --port 0 --streams 3 \
    --memory "$server_memory" >"$folder/said" &
  server=$!
  read -r -t 30 words <"$folder/said"
  rm "$folder/said"
  UCCL_P2P_LISTEN_ADDRESS=10.98.0.1 \
    ip netns exec "$left" "${client_pod[@]}" timeout 120 "$perf" client 10.98.0.2 --port "${words##*:}" --verify "$@"
  wait "$server"
  server=
}

pair --transport tcp --op write,read,send --size 1,4K,100001,1M,16M --duration 0.2
pair --transport tcp --op write,read,send --size 4K --blocks 2000 --duration 0.2
pair --transport tcp --op write --size 1M --streams 3 --duration 0.2

# As nobody, in user, PID, IPC and mount namespaces of its own.
user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if ! "${user[@]}" unshare --user true 2>/dev/null; then
  echo "test_netns: passed, but for pods: no user namespaces here"
  exit 0
fi
client_pod=("${user[@]}" unshare --user --map-current-user --pid --ipc --mount --mount-proc --fork --kill-child)
server_pod=("${client_pod[@]}")
chown 65534 "$folder" "$folder/key"
mkdir "$folder/sockets"
chown 65534 "$folder/sockets"
export UCCL_P2P_SOCKET_DIR=$folder/sockets
# By memory that both map: --transport cma fails a transfer for which that does not work.
pair --transport cma --op write,read,send --size 1,4K,100001,1M,16M --duration 0.2
pair --transport cma --op write,read,send --size 4K --blocks 2000 --duration 0.2
# The server's memory is mapped by the client.
server_memory=shared
pair --transport cma --op write,read,send --size 1,4K,100001,1M,16M --duration 0.2
pair --transport cma --op write,read --size 4K --blocks 2000 --duration 0.2 --memory shared
server_memory=host
# The server is a process of the host, which may reach into the pod; then both are.
server_pod=("${user[@]}")
pair --transport cma --op write,read,send --size 100001,1M --duration 0.2
client_pod=("${user[@]}")
pair --transport cma --op write,read,send --size 100001,1M --duration 0.2
left_there=$(ls "$UCCL_P2P_SOCKET_DIR")
[[ -z $left_there ]] || { echo "test_netns: left in the folder: $left_there" && exit 1; }
echo "test_netns: passed"
