#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/gpu_pods.sh PATH/TO/p2p-perf
# GPU memory between two unprivileged pods of one host, which share nothing but a folder (docs/pods.md): network, user,
# PID, IPC and mount namespaces of their own. Every row is verified. Then the same while neither sees the other's
# device. Needs root, ip (iproute2), and one GPU or more. Exits with 1 if something failed.
set -uo pipefail
perf=$(realpath "$1")
cd "$(dirname "$0")/.." || exit 1
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh
two_hosts pods 10.97.0
gpus=$(nvidia-smi -L | wc -l)
far=$((gpus > 1 ? 1 : 0)) failed=0

(umask 077 && head -c 32 /dev/urandom | base64 >"$folder/key" && mkdir "$folder/sockets")
chown -R 65534 "$folder"
export UCCL_P2P_KEY_FILE=$folder/key UCCL_P2P_SOCKET_DIR=$folder/sockets
pod=(setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user --map-current-user --pid --ipc --mount --mount-proc --fork --kill-child)

# hides N: what a pod begins with that has no device of GPU N.
# shellcheck disable=SC2016  # expanded by the shell that it starts
hides() { hide=(unshare --mount sh -c 'mount --bind /dev/null "/dev/nvidia$0" && exec "$@"' "$1"); }

# rows NAME HERE THERE OPTION...: the client's memory is HERE, the server's THERE.
rows() {
  local words name=$1 here=$2 there=$3
  shift 3
  rm -f "$folder/said" "$folder/rows"
  mkfifo "$folder/said"
  ip netns exec "$right" "${server_hides[@]}" "${pod[@]}" timeout 60 "$perf" server --listen 10.97.0.2 --port 0 \
    --memory "$there" >"$folder/said" 2>"$folder/server" &
  server=$!
  read -r -t 30 words <"$folder/said"
  if UCCL_P2P_LISTEN_ADDRESS=10.97.0.1 ip netns exec "$left" "${client_hides[@]}" "${pod[@]}" "${later[@]}" timeout 60 "$perf" client \
    10.97.0.2 --port "${words##*:}" --memory "$here" --op write,read --size 64K,256M --depth 4 --duration 0.5 --json - \
    "$@" >"$folder/rows" 2>"$folder/client"; then
    grep -hE '^(\{|route)' "$folder/rows" "$folder/client" | sed "s/^/$name /"
  else
    failed=1
    echo "$name: FAILED"
    tail -n 5 "$folder/server" "$folder/client" "$folder/rows"
  fi
  kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  server=
}

client_hides=() server_hides=() later=()
all() {
  rows "$1cudaMalloc" cuda:0 "cuda:$far"
  rows "$1cuMemMap" mapped:0:2 "mapped:$far:2"
  rows "$1private" private:0:2 "private:$far:2"
  rows "$1tcp" cuda:0 "cuda:$far" --transport tcp
}
all ''
# Of another number than the server in its PID namespace: CUDA opens no handle of a process that seems to be its own.
# shellcheck disable=SC2016  # expanded by the shell that it starts
later=(sh -c '"$@"; exit' sh)
rows 'another number, cudaMalloc' cuda:0 "cuda:$far"
later=()
if ((gpus > 1)); then
  hides 1 && client_hides=("${hide[@]}")
  hides 0 && server_hides=("${hide[@]}")
  # CUDA numbers what it sees.
  far=0
  all 'hidden '
fi
exit $failed
