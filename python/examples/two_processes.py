# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What the examples share: two processes with an endpoint each, that exchange metadata through a pipe.

A real program ships the bytes of get_metadata() by whatever it has: a store, a message queue, a file.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

from uccl import p2p

Side = Callable[[p2p.Endpoint, int, Connection], None]
_SECONDS = 60.0


def require(ok: bool) -> None:
    """The calls that answer a bool put the reason into last_error()."""
    if not ok:
        raise p2p.Error(p2p.last_error())


def _serve(pipe: Connection, server: Side) -> None:
    with p2p.Endpoint(local_gpu_idx=1, num_cpus=2) as endpoint:
        pipe.send_bytes(endpoint.get_metadata())
        ok, address, gpu, conn_id = endpoint.accept(timeout=_SECONDS)
        require(ok)
        server(endpoint, conn_id, pipe)
        pipe.recv_bytes()  # the client is through: only now may the memory go


def run(client: Side, server: Side) -> None:
    """Runs ``server`` in a second process and ``client`` in this one, connected to it."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, server))
    process.start()
    theirs.close()
    try:
        with p2p.Endpoint(local_gpu_idx=0, num_cpus=2) as endpoint:
            address, port, gpu = endpoint.parse_metadata(pipe.recv_bytes())
            ok, conn_id = endpoint.connect(address, gpu, port)
            require(ok)
            client(endpoint, conn_id, pipe)
            pipe.send_bytes(b"through")
            process.join(_SECONDS)
    finally:
        process.kill()
    if process.exitcode != 0:
        raise SystemExit(f"the server ended with {process.exitcode}")
