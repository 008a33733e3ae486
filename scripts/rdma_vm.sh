#!/usr/bin/env bash
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
# Usage: scripts/rdma_vm.sh COMMAND [ARGUMENT...]
# Runs the command in a small virtual machine whose kernel has two RDMA devices, rxe0 and rxe1 (Soft-RoCE, each over
# a veth pair of its own). The machine is emulated by software, so it starts anywhere, and is slow. It sees this
# host's files, read-only; /tmp, /run and /dev/shm are its own, but the folder where this was called, which is where
# the command starts, and HOME are always seen.
# Exit status: the command's; 3 if the machine could not be started, 124 if RDMA_VM_SECONDS (600) were over.
# On Debian and Ubuntu, with: qemu-system-x86 busybox-static cpio kmod iproute2 xz-utils zstd (scripts/setup.sh test).
set -euo pipefail
limit=${RDMA_VM_SECONDS:-600}
memory=${RDMA_VM_MEMORY:-2G}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uccl_p2p/rdma_vm
modules=(virtio_pci 9pnet_virtio 9p virtio_net veth rdma_rxe ib_uverbs rdma_ucm crc32_generic)

give_up() {
  echo "rdma_vm: $*" >&2
  exit 3
}

[ $# -gt 0 ] || give_up "no command; usage: scripts/rdma_vm.sh COMMAND [ARGUMENT...]"
PATH=$PATH:/usr/sbin:/sbin
for tool in qemu-system-x86_64 busybox cpio depmod modprobe ip rdma apt-get dpkg; do
  command -v "$tool" >/dev/null || give_up "'$tool' is missing; run scripts/setup.sh test"
done
[ "$(uname -m)" = x86_64 ] || give_up "only an x86_64 machine is emulated, and this is $(uname -m)"

# The packages of the distribution's kernel: its image, and its modules where those have packages of their own.
kernel_packages() {
  local image version package
  image=$(apt-cache depends linux-image-amd64 linux-image-generic 2>/dev/null |
    grep -oE 'linux-image-[0-9][a-z0-9.+-]*' | grep -v dbg | head -n 1) || true
  [ -n "$image" ] || return 0
  echo "$image"
  version=${image#linux-image-}
  for package in "linux-modules-$version" "linux-modules-extra-$version"; do
    if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; fi
  done
}

# Sets `kernel`, the folder for it. True if it is there, or else its packages now are in $fetched. They are
# downloaded but not installed, and the folder, under the kernel's version, is kept.
find_kernel() {
  mapfile -t packages < <(kernel_packages)
  if [ ${#packages[@]} -eq 0 ]; then
    echo "apt-cache knows no kernel image" >"$fetched/log"
    return 1
  fi
  kernel=$cache/${packages[0]}-$(md5sum <"${BASH_SOURCE[0]}" | cut -c1-8)
  [ -e "$kernel/vmlinuz" ] || (cd "$fetched" && rm -f ./*.deb && apt-get download -qq "${packages[@]}" >log 2>&1)
}

update_lists() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  echo "rdma_vm: apt-get update, since: $(tail -n 1 "$fetched/log")" >&2
  "${as_root[@]}" apt-get update -qq >"$fetched/update.log" 2>&1 || true # another source may be out of reach
}

# Makes the folder $kernel of the packages in $fetched.
unpack_kernel() {
  local package
  for package in "$fetched"/*.deb; do
    dpkg -x "$package" "$fetched/tree" || give_up "could not unpack $(basename "$package")"
  done
  [ -e "$fetched/tree/lib" ] || ln -s usr/lib "$fetched/tree/lib"
  [ -d "$fetched/tree/lib/modules" ] || give_up "${packages[*]} have no modules"
  mkdir "$fetched/kernel"
  build_initramfs "$fetched"
  mv "$fetched/tree"/boot/vmlinuz* "$fetched/kernel/vmlinuz"
  mv -T "$fetched/kernel" "$kernel" 2>/dev/null || [ -e "$kernel/vmlinuz" ] # somebody else was first
}

# build_initramfs FOLDER: busybox, the modules in the order in which they load, and the first program.
build_initramfs() {
  local tree=$1/tree root=$1/root version module
  version=$(basename "$tree"/lib/modules/*)
  depmod -b "$tree" "$version"
  mkdir -p "$root"/{bin,dev,modules,proc,sys,host}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for module in "${modules[@]}"; do
    modprobe -d "$tree" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
  done | awk '!seen[$0]++' >"$1/load"
  while read -r module; do
    case $module in
      *.xz) xz -dc "$module" >"$root/modules/$(basename "$module" .xz)" ;;
      *.zst) zstd -qdc "$module" >"$root/modules/$(basename "$module" .zst)" ;;
      *) cp "$module" "$root/modules/" ;;
    esac
  done <"$1/load"
  sed -E 's|.*/||; s/\.(xz|zst)$//' "$1/load" >"$root/modules/order"
  first_program >"$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$1/kernel/initramfs"
}

# What the machine's kernel starts. /run.sh and /mark come with each run; ttyS1 is this script's end.
first_program() {
  cat <<'INIT'
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
exec >/dev/ttyS1 2>&1 </dev/null
stty -F /dev/ttyS1 -opost 115200
finish() {
  echo
  echo "$(cat /mark) $1"
  sync
  sleep 0.2
  poweroff -f
}
refuse() {
  echo "rdma_vm: inside the machine: $*"
  finish 3
}
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in $(cat /modules/order); do insmod /modules/$module || refuse "insmod $module failed"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro root /host || refuse "no root by 9p"
keep() {
  mkdir -p "/kept$1" && mount -o bind "/host$1" "/kept$1"
}
show() {
  mkdir -p "/host$1" && mount -o bind "/kept$1" "/host$1"
}
while read -r folder; do keep "$folder" || refuse "cannot keep $folder"; done </shown
mount -t proc proc /host/proc && mount -t sysfs sys /host/sys && mount -t devtmpfs dev /host/dev ||
  refuse "no proc, sys or dev"
mkdir -p /host/dev/pts /host/dev/shm
for folder in tmp run dev/shm; do mount -t tmpfs -o mode=1777 tmp /host/$folder || refuse "no /$folder"; done
while read -r folder; do show "$folder" || refuse "cannot show $folder"; done </shown
mount -t devpts pts /host/dev/pts
cp /run.sh /host/run/run.sh
chroot /host /bin/bash /run/run.sh
finish $?
INIT
}

# Folders of this host that the machine's own /tmp, /run or /dev/shm would hide.
shown_folders() {
  local folder
  for folder in "$PWD" "$HOME" "${UCCL_P2P_VENV:-}"; do
    case $folder in
      /tmp/* | /run/* | /dev/shm/*) if [ -d "$folder" ]; then echo "$folder"; fi ;;
    esac
  done
}

# What runs in the machine, on this host's files: makes the devices, then the command.
run_program() {
  cat <<'RUN'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
devices() {
  local i
  ip link set lo up
  for i in 0 1; do
    ip link add "cable$i" mtu 9000 type veth peer name "far$i" mtu 9000 || return
    ip addr add "10.97.$i.1/24" dev "cable$i" || return
    ip link set "cable$i" up && ip link set "far$i" up || return
    rdma link add "rxe$i" type rxe netdev "cable$i" || return
  done
}
if ! devices; then
  echo "rdma_vm: inside the machine: no rxe devices"
  exit 3
fi
RUN
  printf 'export HOME=%q LANG=%q CI=%q TERM=dumb P2P_SLOW_MACHINE=1\n' "$HOME" "${LANG:-C.UTF-8}" "${CI:-}"
  printf 'cd %q || exit 3\n' "$PWD"
  printf '%q ' "$@"
  echo
}

mkdir -p "$cache"
work=$(mktemp -d)
fetched=$(mktemp -d "$cache/fetch.XXXXXX")
chmod 755 "$fetched" # apt-get downloads as another user
trap 'rm -rf "$work" "$fetched"' EXIT
if ! find_kernel; then
  update_lists
  find_kernel || give_up "no kernel: $(tail -n 1 "$fetched/log") (apt-get update: $(head -n 1 "$fetched/update.log"))"
fi
[ -e "$kernel/vmlinuz" ] || unpack_kernel

mark=rdma_vm-$(head -c 12 /dev/urandom | od -An -tx1 | tr -d ' \n')
mkdir "$work/root"
echo "$mark" >"$work/root/mark"
run_program "$@" >"$work/root/run.sh"
shown_folders >"$work/root/shown"
{
  cat "$kernel/initramfs"
  (cd "$work/root" && find . | cpio -o -H newc --quiet)
} >"$work/initramfs"

# pass STATUS_FILE: prints all lines but the one with the mark, whose number goes to the file.
pass() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in
      "$mark "*) echo "${line#"$mark "}" >"$1" ;;
      *) printf '%s\n' "$line" ;;
    esac
  done
}

start=$SECONDS
timeout --kill-after=10 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m "$memory" -smp 2 -no-reboot \
  -nodefaults -display none -monitor none -kernel "$kernel/vmlinuz" -initrd "$work/initramfs" \
  -append 'console=ttyS0 panic=-1 mitigations=off nokaslr' \
  -virtfs local,path=/,mount_tag=root,security_model=none,multidevs=remap,readonly=on \
  -serial "file:$work/kernel.log" -chardev stdio,id=out,signal=off -serial chardev:out \
  </dev/null 2>"$work/qemu.log" | pass "$work/status" && machine=0 || machine=${PIPESTATUS[0]}
if [ -s "$work/status" ]; then
  status=$(cat "$work/status")
  echo "rdma_vm: exit status $status after $((SECONDS - start)) s"
  exit "$status"
fi
if [ "$machine" -eq 124 ] || [ "$machine" -eq 137 ]; then
  echo "rdma_vm: FAILED: not done within $limit s" >&2
else
  echo "rdma_vm: FAILED: the machine ended without a word (qemu's exit status $machine)" >&2
fi
{
  tail -n 5 "$work/qemu.log"
  echo "rdma_vm: the end of its kernel's log:"
  tail -n 20 "$work/kernel.log" | tr -d '\r'
} >&2 || true
if [ "$machine" -eq 124 ] || [ "$machine" -eq 137 ]; then exit 124; fi
exit 3
