#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: use_installed.sh CMAKE BUILD_FOLDER COMPILER LIBRARY_FOLDER
# Installs BUILD_FOLDER into a fresh place, moves that, and builds and runs the examples against it: with
# find_package and with pkg-config.
set -euo pipefail
cmake=$1 build=$2 compiler=$3 library_folder=$4
examples=$(cd "$(dirname "$0")/../../examples" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$cmake" --install "$build" --prefix "$place/first" >/dev/null
mv "$place/first" "$place/installed"
prefix=$place/installed

# What docs/install.md names is there.
page=$examples/../docs/install.md
while read -r file; do
  file=${file/#lib\//$library_folder/}
  [[ -e $prefix/$file ]] || { echo "docs/install.md: $file is not installed"; exit 1; }
done < <(sed -n '/^## What lies where/,/^```/p' "$page" | grep '^|' | cut -d'|' -f2 | grep -oE '[a-z]+/[A-Za-z0-9_./-]+')

"$cmake" -S "$examples" -B "$place/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_BUILD_TYPE=Release >/dev/null
"$cmake" --build "$place/build" >/dev/null
for kind in shared static; do
  printf 'find_package, %s: ' "$kind"
  "$place/build/hello_$kind" | grep '^hello by '
done

"$(dirname "$0")/run_examples.sh" "$place/build/send_receive_shared" "$place/build/kv_blocks_static"
plugin=$prefix/$library_folder/libnccl-net-soft.so
for kind in shared static; do
  printf 'find_package, tcpx %s: ' "$kind"
  SOFTNET_INTERFACES=lo "$(dirname "$0")/send_recv.sh" "$place/build/tcpx_send_recv_$kind" "$plugin" | tail -1
done

export PKG_CONFIG_PATH=$prefix/$library_folder/pkgconfig
read -ra flags <<<"$(pkg-config --cflags --libs uccl_p2p)"
"$compiler" -std=c++20 "$examples/hello.cc" "${flags[@]}" -o "$place/hello"
printf 'pkg-config: '
LD_LIBRARY_PATH=$prefix/$library_folder "$place/hello" | grep '^hello by '

# Whoever links the archives needs what they were built with.
for package in uccl_p2p tcpx_p2p; do
  example=hello
  [[ $package == uccl_p2p ]] || example=tcpx_send_recv
  read -ra flags <<<"$(pkg-config --static --cflags --libs "$package" | sed "s/-l$package/-l:lib$package.a/")"
  "$compiler" -std=c++20 "$examples/$example.cc" "${flags[@]}" -o "$place/static_$example"
done
printf 'pkg-config --static: '
"$place/static_hello" | grep '^hello by '

read -ra flags <<<"$(pkg-config --cflags --libs tcpx_p2p)"
"$compiler" -std=c++20 "$examples/tcpx_send_recv.cc" "${flags[@]}" -o "$place/tcpx_send_recv"
printf 'pkg-config, tcpx: '
LD_LIBRARY_PATH=$prefix/$library_folder SOFTNET_INTERFACES=lo "$(dirname "$0")/send_recv.sh" "$place/tcpx_send_recv" \
  "$plugin" | tail -1
