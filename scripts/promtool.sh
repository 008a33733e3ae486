#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/promtool.sh
# Prints where promtool is: installed, or taken out of Debian's package into the user's cache, without the server
# that the package would start.
set -euo pipefail
if command -v promtool; then exit 0; fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/promtool
if [ ! -x "$cache/usr/bin/promtool" ]; then
  command -v apt-get >/dev/null || { echo "promtool: install Prometheus" >&2; exit 1; }
  mkdir -p "$cache"
  (cd "$cache" && apt-get download -qq prometheus >/dev/null 2>&1) || { echo "promtool: apt-get download prometheus failed" >&2; exit 1; }
  dpkg -x "$cache"/prometheus_*.deb "$cache"
  rm "$cache"/prometheus_*.deb
fi
echo "$cache/usr/bin/promtool"
