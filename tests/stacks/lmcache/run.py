# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""LMCache's own benchmark of its transfer channel, whose bytes it verifies, over NIXL with this backend and with UCX."""

import os
import re
import subprocess
import sys

from address import free_address  # beside this script

_SECONDS = 240
_SIZES = ["--object-size", str(1 << 20), "--num-objects", "100", "--iters", "5", "--verify"]
_SOURCES = ["--num-source-objects", "128", "--buffer-size", str(256 << 20)]


def measure(backend: str) -> None:
    data, control = free_address(), free_address()
    common = [sys.executable, "-m", "lmcache.tools.transfer_channel_benchmark", "--nixl-backend", backend]
    common += ["--url", data, "--control-url", control, "--server-timeout", str(_SECONDS), *_SIZES]
    environment = os.environ | {"UCCL_P2P_LOG_LEVEL": "info"}
    server = subprocess.Popen([*common, "--role", "server", *_SOURCES], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        for line in server.stdout:  # its end is bounded by --server-timeout
            if "[server] ready" in line:
                break
        else:
            sys.exit(f"{backend}: the server ended with {server.wait()}")
        client = subprocess.run(
            [*common, "--role", "client", "--listen-url", free_address()],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS, env=environment, check=False,
        )
    finally:
        server.kill()
        server.wait()
    median = re.search(r"median : .*?([\d.]+) GB/s", client.stdout)
    # With UCX it verifies everything and then crashes at its end, which is not ours to judge.
    failed = backend == "TCPX" and client.returncode != 0
    if failed or "verify OK" not in client.stdout or median is None:
        sys.exit(f"{backend}: the client ended with {client.returncode}:\n{client.stdout[-4000:]}")
    route = re.search(r"host to host memory by (\w+)", client.stdout)
    if backend == "TCPX":
        assert route is not None, "the engine took no part"
    by = f" by {route[1]}" if route else ""
    print(f"{backend}{by}: 100 objects of 1 MiB a read, {median[1]} GB/s, verified", flush=True)


for name in ("TCPX", "UCX"):
    measure(name)
