# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Which way each pair of memories takes between two processes of this machine, why not a better one, and how
fast it is beside what the machine does without the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from uccl import p2p
from uccl.doctor.figures import Limits, gigabytes_per_second, judge
from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding
from uccl.doctor.machine import plugin_name
from uccl.doctor.memory import BYTES, GPU_BYTES, Memories, memories
from uccl.doctor.partner import Partner

_SECTION = "paths on this machine"
# Ends the process where both ends are on one machine: docs/tcpx.md.
_TWO_MACHINES_ONLY = "GPUDirectTCPX"
_SPOKEN = {"host": "host", "cuda": "GPU"}

_CHOSEN = "unset UCCL_P2P_DISABLE_IPC"  # a setting, and so no problem by itself

# What stands in the engine's reasons -> what to do. The first that fits counts.
REMEDIES = (
    ("yama.ptrace_scope", "run both as one user; sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"),
    ("not permitted", "allow process_vm_readv: in a container --cap-add=SYS_PTRACE or another seccomp profile"),
    ("another PID namespace", "a folder that both mount (UCCL_P2P_SOCKET_DIR), or --pid=host, in a pod shareProcessNamespace"),
    ("another network namespace", "a folder that both mount (UCCL_P2P_SOCKET_DIR), or --network=host, in a pod hostNetwork"),
    ("left out: only transports", _CHOSEN),
    ("CUDA_VISIBLE_DEVICES", "let both processes see both GPUs and choose by cudaSetDevice"),
    ("built without CUDA", "install again where nvcc of CUDA 12.3 or newer is in PATH"),
    ("Function not implemented", "the kernel refuses the call: a sandbox (gVisor) or Linux before 5.3"),
)


def remedy_of(reason: str) -> str:
    """What to do about a reason of the engine's; nothing where it is as it should be."""
    return next((remedy for sign, remedy in REMEDIES if sign in reason), "")


def remedy_of_path(row: dict[str, Any], known: dict[str, str]) -> str:
    """What to do for a better way between two kinds of memory; ``known``: why transports cannot be used at all."""
    reason: str = row["reason"]
    if row["local"] == row["remote"] == "host":  # what moves GPU memory alone is missed by nobody here
        reason = reason.replace(f"cuda_ipc: {known.get('cuda_ipc', '')}", "")
    return remedy_of(reason)


def examine() -> list[Finding]:
    """Routes and figures; a problem where no two processes can be connected at all."""
    findings: list[Finding] = []
    try:
        with memories(near=True) as mine, Partner() as partner:
            with p2p.Endpoint(0, port=0) as endpoint:  # at a port of its own: that of UCCL_P2P_PORT may be in use
                known = endpoint.transports()
            findings += _transports(known)
            usable = [name for name, reason in known.items() if not reason]
            options: dict[str, Any] = {}
            if "nccl_net" in usable and plugin_name().startswith(_TWO_MACHINES_ONLY):
                usable.remove("nccl_net")
                options = {"transports": usable}
                why = f"{plugin_name()} does not work with both ends on one machine"
                findings.append(Finding("transports", "nccl_net", why, NOTE, "measure it by p2p-doctor --peer"))
            findings += _routes(partner, options, known)
            if mine.missing:
                findings.append(Finding("measured", "GPU memory", mine.missing, NOTE, "is the GPU's memory full?"))
            limits = Limits(mine, partner.process.pid or 0, partner.address)
            for name in usable:
                if name != "loopback":  # two processes never take it
                    findings += _figures(name, mine, partner, limits)
    except p2p.Error as error:
        return [Finding(_SECTION, "two processes", str(error), PROBLEM, remedy_of(str(error)))]
    return findings


def _transports(known: dict[str, str]) -> Iterator[Finding]:
    for name, reason in known.items():
        yield Finding("transports", name, reason or "usable", NOTE if reason else OK, remedy_of(reason))


def _connected(endpoint: p2p.Endpoint, metadata: bytes) -> int:
    ok, connection = endpoint.add_remote_endpoint(metadata)
    if not ok:
        raise p2p.Error(p2p.last_error())
    return connection


def _routes(partner: Partner, options: dict[str, Any], known: dict[str, str]) -> Iterator[Finding]:
    with partner.endpoint(**options) as (metadata, _), p2p.Endpoint(0, port=0, **options) as endpoint:
        connection = _connected(endpoint, metadata)
        cuda = any(name.startswith("cuda") and not reason for name, reason in endpoint.transports().items())
        for row in endpoint.routes(connection):
            name = f"{row['local']} to {row['remote']}"
            if "cuda" in name and not cuda:
                continue
            remedy = remedy_of_path(row, known)
            lost = not row["transport"] or (bool(remedy) and remedy != _CHOSEN)
            reason = row["reason"]
            for transport, why in known.items():
                if why:  # said once already
                    reason = reason.replace(f"{transport}: {why}", f"{transport}: see transports")
            yield Finding(_SECTION, name, f"{row['transport'] or 'no path'}: {reason}", PROBLEM if lost else OK, remedy)


def _figures(transport: str, mine: Memories, partner: Partner, limits: Limits) -> Iterator[Finding]:
    """One transport, between each pair of memories that it carries and both processes have."""
    only: dict[str, Any] = {"transports": [transport]}
    try:
        with partner.endpoint(**only) as (metadata, blobs), p2p.Endpoint(0, port=0, **only) as endpoint:
            yield from measure(endpoint, _connected(endpoint, metadata), mine, blobs, limits.of)
    except p2p.Error as error:
        # Where a path is refused, the routes say whether that is a problem.
        level = PROBLEM if transport == "tcp" else NOTE
        yield Finding("measured", transport, str(error), level, remedy_of(str(error)))


def measure(
    endpoint: p2p.Endpoint, connection: int, mine: Memories, blobs: dict[str, bytes],
    limit_of: Callable[[str, str, str, str], tuple[str, float]],
) -> Iterator[Finding]:  # fmt: skip
    """A write between each pair of memories of mine and those that ``blobs`` leave to me, beside what ``limit_of`` a
    transport, two kinds of memory and a route's detail there is."""
    regions = mine.registered(endpoint)
    for row in endpoint.routes(connection):
        transport, local, remote = row["transport"], row["local"], row["remote"]
        if not transport or local not in regions or remote not in blobs:
            continue
        size = GPU_BYTES if transport == "cuda_ipc" and local == remote == "cuda" else BYTES
        address = mine.by_kind[local].address

        def write(local: str = local, remote: str = remote, address: int = address, size: int = size) -> None:
            if not endpoint.write(connection, regions[local], address, size, blobs[remote]):
                raise p2p.Error(p2p.last_error())

        figure = gigabytes_per_second(write, size)
        name = f"{transport}, {_SPOKEN[local]} to {_SPOKEN[remote]}"
        yield judge(name, figure, *limit_of(transport, local, remote, row["detail"]), size)
