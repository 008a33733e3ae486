# shellcheck shell=bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# For scripts that source it: two hosts on one machine.

# two_hosts NAME NETWORK: makes the hosts $left (NETWORK.1) and $right (NETWORK.2), network namespaces joined by a
# veth pair whose ends are both called cable, and the scratch folder $folder. When the script ends they go, and the
# process $server if one is set. Needs root.
two_hosts() {
  left=$1-$$-left right=$1-$$-right server='' folder=$(mktemp -d)
  trap end_hosts EXIT
  local host
  for host in "$left" "$right"; do ip netns add "$host"; done
  ip -n "$left" link add cable type veth peer name cable netns "$right"
  ip -n "$left" addr add "$2.1/24" dev cable
  ip -n "$right" addr add "$2.2/24" dev cable
  for host in "$left" "$right"; do
    ip -n "$host" link set lo up
    ip -n "$host" link set cable up
  done
}

end_hosts() {
  if [[ -n $server ]]; then kill "$server" 2>/dev/null || true; fi
  ip netns del "$left" 2>/dev/null || true
  ip netns del "$right" 2>/dev/null || true
  rm -rf "$folder"
}
