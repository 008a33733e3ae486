#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: bare_root.sh WHEEL
# Uses the wheel on a machine that has nothing: a root with the C and C++ libraries and the system's own Python, unpacked
# from the packages of Debian or Ubuntu, in namespaces of its own. No compiler, no OpenSSL, no driver, no network. WHEEL
# is one for the version of /usr/bin/python3.
set -Eeuo pipefail
trap 'echo "bare_root.sh: line $LINENO failed"' ERR
wheel=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)

if [ "${2:-}" = --inside ]; then
  root=$3
  ip link set lo up
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/dev"
  mkdir "$root/dev/shm"
  for device in null zero urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
  done
  enter=$(command -v chroot)
  exec env -i PATH=/usr/bin PYTHONPATH=/opt/uccl:/opt/test PYTHONDONTWRITEBYTECODE=1 HOME=/root \
    "$enter" "$root" "/usr/bin/$4" /opt/test/bare_machine.py
fi

python=$(basename "$(realpath /usr/bin/python3)")
packages=(libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8
  "$python-minimal" "lib$python-minimal" "lib$python-stdlib")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/bare_root/$python
if [ ! -e "$cache/complete" ]; then
  rm -rf "$cache"
  mkdir -p "$cache"
  download() { (cd "$cache" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}"); }
  download || { apt-get -qq update && download; }
  touch "$cache/complete"
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
for folder in bin lib lib64 sbin; do
  mkdir -p "$root/usr/$folder"
  ln -s "usr/$folder" "$root/$folder"
done
mkdir -p "$root"/{proc,dev,tmp,root,opt/uccl,opt/test}
for package in "$cache"/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C "$root"; done
"/usr/bin/$python" -m zipfile -e "$wheel" "$root/opt/uccl"
chmod +x "$root"/opt/uccl/uccl/bin/*
cp "$here/bare_machine.py" "$here/../../python/examples/two_processes.py" "$root/opt/test"

namespaces=(--net --mount --pid --fork --kill-child)
if [ "$(id -u)" -ne 0 ]; then namespaces+=(--user --map-root-user); fi
unshare "${namespaces[@]}" "$0" "$wheel" --inside "$root" "$python"
