# shellcheck shell=bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# For scripts that source it: two hosts on one machine.

# bare_hosts NAME: makes the hosts $left and $right, network namespaces, and the scratch folder $folder. When the script
# ends they go, and the processes $server and $carrier if they are set. Needs root.
bare_hosts() {
  left=$1-$$-left right=$1-$$-right server='' carrier='' folder=$(mktemp -d)
  trap end_hosts EXIT
  local host
  for host in "$left" "$right"; do
    ip netns add "$host"
    ip -n "$host" link set lo up
  done
}

# two_hosts NAME NETWORK: the same, $left (NETWORK.1) and $right (NETWORK.2) joined by a veth pair whose ends are both
# called cable.
two_hosts() {
  bare_hosts "$1"
  local host
  ip -n "$left" link add cable type veth peer name cable netns "$right"
  ip -n "$left" addr add "$2.1/24" dev cable
  ip -n "$right" addr add "$2.2/24" dev cable
  for host in "$left" "$right"; do ip -n "$host" link set cable up; done
}

# iperf_between LEFT RIGHT FILE OPTION...: iperf3 from the host $left to the host $right, by these addresses; its JSON goes
# to FILE. The client is not started before the server listens, and neither outlives IPERF_LIMIT seconds (60).
iperf_between() {
  local here=$1 there=$2 file=$3 heard=$folder/heard.$2 limit=${IPERF_LIMIT:-60} listener said word status=0
  shift 3
  mkfifo "$heard"
  ip netns exec "$right" timeout "$limit" iperf3 -s -1 -B "$there" --forceflush >"$heard" &
  listener=$!
  exec {said}<"$heard"
  rm "$heard"
  while read -r -t 30 -u "$said" word && [[ $word != *listening* ]]; do :; done
  ip netns exec "$left" timeout "$limit" iperf3 -c "$there" -B "$here" --connect-timeout 5000 -J "$@" >"$file" || status=$?
  if [ "$status" -ne 0 ]; then
    echo "iperf3 from $here to $there: exit status $status (124: not done within $limit s)" >&2
    cat "$file" >&2
    kill "$listener" 2>/dev/null || true
  fi
  cat <&"$said" >/dev/null
  exec {said}<&-
  wait "$listener" || true
  return "$status"
}

# perf_between LEFT RIGHT OPTION...: $perf moves something from the host $left to the host $right, by these addresses; its
# rows lie in $folder/rows. Sets $server meanwhile.
perf_between() {
  local here=$1 there=$2 words
  shift 2
  rm -f "$folder/said" "$folder/rows"
  mkfifo "$folder/said"
  ip netns exec "$right" timeout 300 "$perf" server --listen "$there" --port 0 >"$folder/said" &
  server=$!
  read -r -t 30 words <"$folder/said"
  UCCL_P2P_LISTEN_ADDRESS=$here ip netns exec "$left" timeout 300 "$perf" client "$there" --port "${words##*:}" "$@" \
    --json "$folder/rows" >/dev/null
  wait "$server"
  server=
}

# "OPERATION MBITS" of each of its rows.
perf_sums() {
  python3 - "$folder/rows" <<'END'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    if "gbytes_per_second" in row:
        print(row["op"], round(row["gbytes_per_second"] * 8000, 1))
END
}

end_hosts() {
  local one
  for one in $server $carrier; do kill "$one" 2>/dev/null || true; done
  ip netns del "$left" 2>/dev/null || true
  ip netns del "$right" 2>/dev/null || true
  rm -rf "$folder"
}
