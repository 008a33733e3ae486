#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: run_examples.sh SEND_RECEIVE KV_BLOCKS
# Runs the examples for two hosts, with a key: on one host, and with root between two network namespaces as well.
set -Eeuo pipefail
trap 'echo "run_examples.sh: line $LINENO failed"' ERR
send_receive=$1 kv_blocks=$2
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/../../scripts/namespaces.sh"

# serve COMMAND...: starts it on the right and waits until it listens, at $host and $port.
serve() {
  mkfifo "$folder/said"
  timeout 100 "${on_right[@]}" "$@" >"$folder/said" &
  server=$!
  exec 3<"$folder/said"
  rm "$folder/said"
  read -r -t 30 _ _ host port <&3
}

# expect WORDS: what the server says before its end.
expect() {
  local said
  said=$(timeout 60 cat <&3)
  wait "$server"
  server=
  grep -F "$1" <<<"$said" || { echo "the server said '$said', not '$1'"; exit 1; }
}

# both [TRANSPORT]: both examples, over that transport.
both() {
  local text="a text of five words"
  serve "$send_receive" receive 0
  timeout 60 "${on_left[@]}" "$send_receive" send "${address:-$host}" "$port" "$text" | grep "sent ${#text} bytes over ${1:-}"
  expect ": $text"
  serve "$kv_blocks" decode 0
  timeout 60 "${on_left[@]}" "$kv_blocks" prefill "${address:-$host}" "$port" | grep "4 layers of 4096 blocks over ${1:-}"
  expect "4096 of 4096 blocks are right after 4 layers"
}

secret() {
  (umask 077 && head -c 32 /dev/urandom | base64 >"$folder/key")
  export UCCL_P2P_KEY_FILE=$folder/key
}

on_left=(env) on_right=(env) address=''
if [[ $(id -u) -eq 0 ]] && ip netns list >/dev/null 2>&1; then
  two_hosts examples 10.98.7
  secret
  on_left=(ip netns exec "$left") on_right=(ip netns exec "$right") address=10.98.7.2
  both tcp
  on_left=(env) on_right=(env) address=''
else
  echo "two hosts: skipped: network namespaces need root"
  server='' left=none right=none folder=$(mktemp -d)
  trap end_hosts EXIT
  secret
fi
both

# Without the key nobody gets in.
serve "$send_receive" receive 0
if UCCL_P2P_KEY_FILE='' timeout 60 "$send_receive" send "$host" "$port" x 2>"$folder/refusal"; then
  echo "a sender without the key got in"
  exit 1
fi
grep key "$folder/refusal"
