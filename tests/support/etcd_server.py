# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""An etcd of its own for a Python test: of the package (pyproject.toml names this folder) or of the NIXL backend."""

import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """Below those that the system gives to who connects, where it can be: one of them may be taken before etcd listens."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    below = range(max(1024, first // 2), first)
    for port in [*random.SystemRandom().sample(below, min(len(below), 16)), 0]:
        try:
            with socket.create_server(("127.0.0.1", port)) as server:
                return server.getsockname()[1]
        except OSError:  # somebody else's
            continue
    raise OSError("no port is free")


@contextmanager
def etcd(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server, which may not answer yet. Without one the test is skipped."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian's etcd-server)")
    urls = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"]
    server = subprocess.Popen(
        ["etcd", "--data-dir", str(folder), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]]
        + ["--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]]
        + ["--initial-cluster", f"default={urls[1]}", "--unsafe-no-fsync"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield server
    finally:
        server.kill()
        server.wait()
