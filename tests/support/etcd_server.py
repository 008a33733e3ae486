# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""An etcd of its own for a Python test: of the package (pyproject.toml names this folder) or of the NIXL backend."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


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
