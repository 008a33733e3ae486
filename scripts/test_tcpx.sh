#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Runs the tcpx program between two hosts, network namespaces joined by a veth pair, through softnet in each of
# its modes. Every byte is checked.
# Usage: test_tcpx.sh [BUILD_FOLDER], by default the release preset's, which is built if need be.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR
source scripts/namespaces.sh

if [[ $(id -u) -ne 0 ]]; then
  echo "test_tcpx: skipped: network namespaces need root"
  exit 0
fi
build=${1:-build/release}
tcpx=$build/tools/tcpx/tcpx
plugin=$build/softnet/libnccl-net-soft.so
if [[ ! -x $tcpx || ! -e $plugin ]]; then
  cmake --preset release
  cmake --build --preset release --target tcpx nccl_net_soft
fi
two_hosts tcpx 10.99.0

# both COMMAND OPTION...: a server on one host, a client on the other; both must succeed.
both() {
  local command=$1
  shift
  ip netns exec "$right" timeout 120 "$tcpx" "$command" server --plugin "$plugin" "${server_options[@]}" &
  server=$!
  ip netns exec "$left" timeout 120 "$tcpx" "$command" client 10.99.0.2 --plugin "$plugin" "$@"
  wait "$server"
  server=
}

server_options=()
export SOFTNET_INTERFACES=cable
ip netns exec "$left" "$tcpx" discover --plugin "$plugin"
both connect
for mode in "SOFTNET_UNPACK=0" "SOFTNET_UNPACK=1" \
  "SOFTNET_UNPACK=1 SOFTNET_FRAGMENTS=random SOFTNET_STRICT=1"; do
  echo "== $mode"
  export SOFTNET_UNPACK=0 SOFTNET_FRAGMENTS=pages SOFTNET_STRICT=0
  for setting in $mode; do export "${setting?}"; done
  both transfer --channels 4 --sizes 1,24,4096,1000003,67108864
  both perf --channels 1 --sizes 65536,16777216 --rounds 3 --json
  both perf --channels 4 --window 8 --sizes 16777216 --rounds 3
done

# Fragments as small as an MTU of 1460 makes them: messages of 4 MiB would have more than a list holds, and the plugin
# that is imitated would end the process.
for host in "$left" "$right"; do ip -n "$host" link set cable mtu 1460; done
echo "== MTU 1460, fragments of packets, a full list ends the process"
export SOFTNET_UNPACK=1 SOFTNET_FRAGMENTS=packets SOFTNET_STRICT=0 SOFTNET_HABITS=fragment_exit
both transfer --channels 2 --chunk 4M --sizes 1000003,67108864

echo "== all habits of GPUDirectTCPX"
export SOFTNET_HABITS=tcpx SOFTNET_NAME=GPUDirectTCPX_v7 SOFTNET_POOL_MIB=32
export SOFTNET_PCI_PATH=/sys/devices/pci0000:00/0000:00:04.0
server_options=(--host-pool)
both transfer --host-pool --channels 4 --chunk 4M --sizes 1,24,4096,1000003,67108864
both perf --host-pool --channels 4 --threads 2 --sizes 16777216 --rounds 3
echo "test_tcpx: passed"
