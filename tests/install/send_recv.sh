#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: send_recv.sh PROGRAM PLUGIN
# Runs the example tcpx_send_recv as two processes, which check every byte.
set -euo pipefail
program=$1 plugin=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
timeout 60 "$program" receive "$folder/info.bin" "$plugin" &
receiver=$!
timeout 60 "$program" send "$folder/info.bin" "$plugin"
wait "$receiver"
