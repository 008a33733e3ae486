# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Two hosts: what reaches what, how large and how fast, and whether versions and keys fit.

The control connection carries JSON and bytes. Whoever can reach the port of ``--serve`` may ask for what is
asked here: a list of addresses, sockets that take bytes, and an endpoint with memory of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uccl
from uccl import p2p
from uccl.doctor.figures import acknowledge_blocks, ports_rate, stream_speed
from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding
from uccl.doctor.machine import configured_port, is_taken, read
from uccl.doctor.memory import BYTES, memories
from uccl.doctor.paths import measure, remedy_of
from uccl.utils import recv_obj, send_obj

PORT = 18733
_SECTION = "peer"
_PATIENCE = 10.0
_ROUNDS = 50
_IP_MTU, _IPV6_MTU = 14, 24  # of getsockopt; Python has no names for them
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_UNFIT = 0x08 | 0x20 | 0x40  # of its flags: taken by another host, going out of use, not yet tried
_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_UP = 0x8913, 0x8915, 1  # of netdevice(7)
_CLOCKS_APART = 1.0  # seconds from which on logs are hard to compare


def addresses() -> dict[str, str]:
    """This host's addresses that others may reach: IPv4 by interface, and IPv6 by "INTERFACE IPv6"."""
    return {**_ipv4_addresses(), **_ipv6_addresses()}


def _ipv6_addresses() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in read(_IPV6_ADDRESSES).splitlines():
        digits, _, _, scope, flags, name = line.split()
        if int(scope, 16) == 0 and not int(flags, 16) & _UNFIT:
            found.setdefault(f"{name} IPv6", socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    return found


def _ipv4_addresses() -> dict[str, str]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            with contextlib.suppress(OSError):  # no address, or gone
                (flags,) = struct.unpack_from("H", fcntl.ioctl(asking, _SIOCGIFFLAGS, request), 16)
                address = socket.inet_ntoa(fcntl.ioctl(asking, _SIOCGIFADDR, request)[20:24])
                if flags & _IFF_UP and not address.startswith(("127.", "169.254.")):
                    found[name] = address
    return found


def _sink(listener: socket.socket) -> None:
    """Takes bytes of whoever connects, and confirms each block."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_swallow, args=(connection,), daemon=True).start()


def _swallow(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_PATIENCE)
        acknowledge_blocks(connection, BYTES)


def _listener(address: str, port: int) -> socket.socket:
    """At every address of this host, if ``address`` is empty."""
    if not address and socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address, port), family=_family(address))


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve(address: str, port: int, clients: int | None = None) -> None:
    """Answers doctors on other hosts, one at a time; for ever, or so many."""
    with _listener(address, port) as server:
        port = server.getsockname()[1]
        print(f"listening on port {port}; on another host: p2p-doctor --peer THIS_HOST:{port}", flush=True)
        served = 0
        while clients is None or served < clients:
            connection, (peer, *_) = server.accept()
            served += 1
            with connection:
                connection.settimeout(_PATIENCE)
                try:
                    _answer(connection)
                    print(f"{peer}: answered", flush=True)
                except (OSError, ValueError, p2p.Error) as error:
                    print(f"{peer}: {error}", flush=True)
                    with contextlib.suppress(OSError):
                        send_obj(connection, {"error": str(error)})


def _answer(connection: socket.socket) -> None:
    with contextlib.ExitStack() as stack:
        rails = {}
        for name, address in addresses().items():
            listener = stack.enter_context(_listener(address, 0))
            threading.Thread(target=_sink, args=(listener,), daemon=True).start()
            rails[name] = listener.getsockname()[:2]
        here = connection.getsockname()[0].removeprefix("::ffff:")  # as a socket for both families has it
        mine = stack.enter_context(memories(near=True))
        # At the port that firewalls know, where no program has it.
        port = configured_port()
        endpoint = stack.enter_context(p2p.Endpoint(1, listen_address=here, port=0 if is_taken(port) else port))
        blobs = mine.advertised(endpoint)
        send_obj(
            connection,
            {
                "version": uccl.__version__,
                "rails": rails,
                "metadata": endpoint.get_metadata().hex(),
                "blobs": {kind: blob.hex() for kind, blob in blobs.items()},
                "mtu": {name: _interface_mtu(name) for name in rails},
            },
        )
        while (asked := recv_obj(connection)) != "through":
            send_obj(connection, {"echo": asked, "clock": time.time()})


def _interface_mtu(rail: str) -> int:
    text = read(f"/sys/class/net/{rail.removesuffix(' IPv6')}/mtu")
    return int(text) if text.isdigit() else 0


def examine(host: str, port: int) -> list[Finding]:
    """Everything about the way to a host on which the doctor serves."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_PATIENCE)
            theirs = _checked(recv_obj(connection))
            findings = [*_versions(theirs), *_round_trips(connection), *_rails(theirs)]
            findings += _engine(theirs, connection.getpeername()[0])
            send_obj(connection, "through")
            return findings
    except ValueError as error:
        return [Finding(_SECTION, f"{host}:{port}", str(error), PROBLEM)]
    except socket.gaierror as error:
        text = error.strerror or str(error)
        return [Finding(_SECTION, f"{host}:{port}", text, PROBLEM, f"is {host} the name of a host, as this one knows it?")]
    except OSError as error:
        remedy = f"is `p2p-doctor --serve --port {port}` running there, and does a firewall let it through?"
        return [Finding(_SECTION, f"{host}:{port}", error.strerror or str(error) or type(error).__name__, PROBLEM, remedy)]


def _checked(answer: Any) -> dict[str, Any]:
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise ValueError(f"the doctor there: {answer['error']}")
    kinds = {"version": str, "rails": dict, "metadata": str, "blobs": dict, "mtu": dict}
    if not isinstance(answer, dict) or not all(isinstance(answer.get(key), kind) for key, kind in kinds.items()):
        raise ValueError("what answers there is not p2p-doctor")
    return answer


def _versions(theirs: dict[str, Any]) -> Iterator[Finding]:
    same = theirs["version"] == uccl.__version__
    yield Finding(
        _SECTION, "versions", f"{uccl.__version__} here, {theirs['version']} there", OK if same else NOTE,
        "" if same else "install one version on both",
    )  # fmt: skip


def _round_trips(connection: socket.socket) -> Iterator[Finding]:
    times, offsets = [], []
    for _ in range(_ROUNDS):
        token = secrets.token_hex(4)
        sent, start = time.time(), time.perf_counter()
        send_obj(connection, token)
        answer = recv_obj(connection)
        took = time.perf_counter() - start
        if not isinstance(answer, dict) or answer.get("echo") != token:
            raise ValueError("what answers there is not p2p-doctor")
        times.append(took)
        offsets.append(float(answer["clock"]) - (sent + took / 2))
    yield Finding(
        _SECTION, "round trip", f"{statistics.median(times) * 1e6:.0f} us, best {min(times) * 1e6:.0f}, from Python"
    )
    apart = offsets[times.index(min(times))]
    far = abs(apart) > _CLOCKS_APART
    yield Finding(
        _SECTION, "clock", f"{apart * 1e3:+.1f} ms there", NOTE if far else OK,
        "set both by NTP, else logs cannot be compared" if far else "",
    )  # fmt: skip


def _rails(theirs: dict[str, Any]) -> Iterator[Finding]:
    """Each interface here with each there: reached, path MTU, throughput of one stream."""
    for mine, source in addresses().items():
        for name, (address, port) in theirs["rails"].items():
            if _family(source) != _family(address):
                continue
            label = f"{mine} to {name}"
            try:
                with socket.create_connection((address, port), timeout=3, source_address=(source, 0)) as connection:
                    yield _rail(connection, label, _interface_mtu(mine), int(theirs["mtu"].get(name, 0)))
            except OSError as error:
                yield Finding(
                    _SECTION, label, f"{source} does not reach {address}: {error}", NOTE,
                    "fine for rails that are separate networks; else a firewall or a missing route",
                )  # fmt: skip


def _rail(connection: socket.socket, label: str, mine: int, theirs: int) -> Finding:
    speed = stream_speed(connection, _PATIENCE)
    six = connection.family == socket.AF_INET6
    path = connection.getsockopt(*((socket.IPPROTO_IPV6, _IPV6_MTU) if six else (socket.IPPROTO_IP, _IP_MTU)))
    segment = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    differ = 0 < theirs != mine or path < min(mine, theirs or mine)
    return Finding(
        _SECTION, label, f"{speed:.2f} GB/s by one raw stream, path MTU {path} (segments of {segment})",
        NOTE if differ else OK,
        f"MTU {mine} here, {theirs} there: set the same on the whole way" if differ else "",
    )  # fmt: skip


def _engine(theirs: dict[str, Any], address: str) -> Iterator[Finding]:
    """A connection with the key that is set, and a write between each pair of memories."""
    metadata = bytes.fromhex(theirs["metadata"])
    try:
        with memories(near=True) as mine, p2p.Endpoint(0, port=0) as endpoint:
            ok, connection = endpoint.add_remote_endpoint(metadata)
            if not ok:
                reason = p2p.last_error()
                about_key = "key" in reason
                yield Finding(
                    _SECTION, "connection", reason, PROBLEM,
                    "both hosts must have the same key in the files that UCCL_P2P_KEY_FILE names" if about_key
                    else remedy_of(reason),
                )  # fmt: skip
                return
            host = next(row for row in endpoint.routes(connection) if row["local"] == row["remote"] == "host")
            yield Finding(_SECTION, "connection", f"open; {host['transport']}: {host['reason']}, {host['detail']}")
            blobs = {kind: bytes.fromhex(blob) for kind, blob in theirs["blobs"].items()}
            raw = _raw(theirs)

            def limit_of(transport: str, _local: str, _remote: str, detail: str) -> tuple[str, float]:
                return ("the rate of the ports", ports_rate(detail)) if transport == "rdma" else ("one raw stream", raw)

            for finding in measure(endpoint, connection, mine, blobs, limit_of):
                finding.name += f", {address}"
                yield finding
    except p2p.Error as error:
        yield Finding(_SECTION, "engine", str(error), PROBLEM, remedy_of(str(error)))


def _raw(theirs: dict[str, Any]) -> float:
    """The best of one stream to any of the peer's addresses."""
    best = 0.0
    for address, port in theirs["rails"].values():
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=3) as connection:
            best = max(best, stream_speed(connection, _PATIENCE))
    return best
