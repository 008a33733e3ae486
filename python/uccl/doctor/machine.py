# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What the machine and this process have: read from the kernel, changed nowhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from uccl import _p2p
from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding
from uccl.doctor.gpus import find_gpus

_SYS_PTRACE = 19  # the number of that capability
_ENOUGH_FILES = 4096
_OLDEST_KERNEL = (5, 3)
_INFINIBAND = Path("/sys/class/infiniband")
_NICS = Path("/sys/class/net")


def read(path: str | Path) -> str:
    """A file of the kernel's, or nothing where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _status(field: str) -> str:
    for line in read("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.strip()
    return ""


def examine() -> list[Finding]:
    """Everything about this machine, in the order in which it is shown."""
    parts = (_system, _rights, _limits, _network, _rdma, _plugins)
    return [*(finding for part in parts for finding in part()), *find_gpus(_p2p.__cuda__)]


def _system() -> Iterator[Finding]:
    section = "machine"
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    old = numbers < _OLDEST_KERNEL
    yield Finding(
        section, "kernel", f"Linux {release}, {platform.machine()}", PROBLEM if old else OK,
        "copies between processes need Linux 5.3" if old else "",
    )  # fmt: skip
    cores, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    quota = read("/sys/fs/cgroup/cpu.max").split()
    limited = len(quota) == 2 and quota[0] != "max"
    share = int(quota[0]) / int(quota[1]) if limited else float(allowed)
    text = f"{cores} cores, {allowed} of them for this process"
    if limited:
        text += f", a cgroup's quota of {share:.1f}"
    starved = share < min(2, cores)
    yield Finding(
        section, "CPUs", text, NOTE if starved else OK,
        "engine threads and the program share less than two cores" if starved else "",
    )  # fmt: skip
    built = _p2p.__cuda__
    yield Finding(
        section, "built with CUDA", built or "no: GPU memory cannot be moved", OK if built else NOTE,
        "" if built else "install again where nvcc of CUDA 12.3 or newer is in PATH, if there are GPUs",
    )  # fmt: skip


def _rights() -> Iterator[Finding]:
    section = "rights and namespaces"
    may_trace = bool(int(_status("CapEff") or "0", 16) >> _SYS_PTRACE & 1)
    yama = read("/proc/sys/kernel/yama/ptrace_scope") or "0"
    closed = yama != "0" and not may_trace
    yield Finding(
        section, "other processes' memory",
        f"kernel.yama.ptrace_scope = {yama}, CAP_SYS_PTRACE: {'yes' if may_trace else 'no'}",
        PROBLEM if closed else OK,
        "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for both processes: without it host memory "
        "of one machine goes by tcp" if closed else "",
    )  # fmt: skip
    filtered = _status("Seccomp") == "2"
    yield Finding(section, "seccomp", "a filter is in force" if filtered else "no filter")
    for kind in ("pid", "net"):
        own = namespace("self", kind)
        first = namespace("1", kind)
        apart = bool(first) and own != first
        note = f"processes in other {kind.upper()} namespaces are reached by tcp only"
        whose = "not process 1's" if apart else "that of process 1" if first else "process 1's cannot be seen"
        yield Finding(
            section, f"{kind.upper()} namespace", f"{own}, {whose}", NOTE if apart else OK, note if apart else ""
        )


def namespace(process: str, kind: str) -> str:
    """The name of a process' namespace; nothing where it is not ours to see."""
    try:
        return os.readlink(f"/proc/{process}/ns/{kind}")
    except OSError:
        return ""


def _limits() -> Iterator[Finding]:
    section = "limits"
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < _ENOUGH_FILES
    yield Finding(
        section, "open files", str(files), NOTE if few else OK,
        f"ulimit -n {most_files}: each connection takes a dozen or more" if few else "",
    )  # fmt: skip
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    endless = locked == resource.RLIM_INFINITY
    has_rdma = _INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())
    yield Finding(
        section, "locked memory", "unlimited" if endless else f"{locked >> 10} KiB",
        PROBLEM if has_rdma and not endless else OK,
        "ulimit -l unlimited: RDMA registers memory by locking it" if has_rdma and not endless else "",
    )  # fmt: skip


def _network() -> Iterator[Finding]:
    section = "network"
    if not _NICS.is_dir():
        yield Finding(section, "interfaces", "/sys is not mounted: nothing is known of them", NOTE)
    for path in sorted(_NICS.glob("*")):
        if read(path / "operstate") not in ("up", "unknown"):
            continue
        speed = read(path / "speed")
        known = speed.lstrip("-").isdigit() and int(speed) > 0
        device = (path / "device").resolve().name if (path / "device").exists() else ""
        text = f"MTU {read(path / 'mtu')}" + (f", {int(speed) / 1000:g} Gbit/s" if known else "")
        yield Finding(section, path.name, text + (f", PCI {device}" if ":" in device else ""))
    for name in ("net.core.rmem_max", "net.core.wmem_max", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        value = " ".join(read("/proc/sys/" + name.replace(".", "/")).split())
        if value:
            yield Finding(section, name, value)
    control = read("/proc/sys/net/ipv4/tcp_congestion_control")
    yield Finding(section, "congestion control", control or "unknown")
    yield from _port(section)


def _port(section: str) -> Iterator[Finding]:
    port, text = configured_port(), os.environ.get("UCCL_P2P_PORT", "")
    if not port and text not in ("", "0"):
        yield Finding(section, "port", f"{text}, by UCCL_P2P_PORT")
        return
    if not port:
        yield Finding(section, "port", "the system chooses (UCCL_P2P_PORT is not set)")
        return
    taken = is_taken(port)
    yield Finding(
        section, "port", f"{port}, by UCCL_P2P_PORT: {'taken' if taken else 'free'}", NOTE if taken else OK,
        "fine if a program with an endpoint runs now; each endpoint of a host needs a port of its own" if taken else "",
    )  # fmt: skip


def configured_port() -> int:
    """What UCCL_P2P_PORT says; 0 where it says nothing."""
    text = os.environ.get("UCCL_P2P_PORT", "")
    return int(text) if text.isdigit() and int(text) <= 0xFFFF else 0


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False


def _rdma() -> Iterator[Finding]:
    section = "RDMA"
    ports = sorted(_INFINIBAND.glob("*/ports/*"))
    if not ports:
        yield Finding(section, "devices", "none")
    for port in ports:
        device = port.parent.parent
        state = read(port / "state").partition(": ")[2] or "unknown"
        down = state != "ACTIVE"
        yield Finding(
            section, f"{device.name}:{port.name}", f"{read(port / 'rate')}, {read(port / 'link_layer')}, {state}",
            NOTE if down else OK, "the port is not used until its link is up" if down else "",
        )  # fmt: skip


def plugin_name() -> str:
    """What the NCCL net plugin calls itself; nothing where none opens."""
    named = os.environ.get("UCCL_P2P_NCCL_NET_PLUGIN", "") or "libnccl-net.so"
    candidates = [path for part in named.split(",") for path in (part, f"libnccl-net-{part}.so")]
    for path in candidates:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            for version in range(12, 4, -1):
                with contextlib.suppress(ValueError):  # every table begins with the name
                    name = ctypes.c_char_p.in_dll(library, f"ncclNetPlugin_v{version}").value
                    return (name or b"").decode(errors="replace")
    return ""


def _plugins() -> Iterator[Finding]:
    section = "plugins"
    named = os.environ.get("UCCL_P2P_NCCL_NET_PLUGIN", "")
    name = plugin_name()
    yield Finding(section, "NCCL net plugin", f"{name}, {named or 'libnccl-net.so'}" if name else named or "none")
    from uccl import nixl

    for place in nixl.places():
        yield Finding(section, place.package, f"{place.version}, backend {nixl.BACKEND} {nixl.state(place.folder)}")
