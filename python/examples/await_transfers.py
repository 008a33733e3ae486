# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Waits for many reads in one event loop, with a deadline each."""

import asyncio
from multiprocessing.connection import Connection

import numpy as np
from two_processes import require, run

from uccl import p2p

PARTS = 16
PART_BYTES = 1 << 20


def client(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    data = np.zeros((PARTS, PART_BYTES), np.uint8)
    ok, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
    require(ok)
    blobs = [pipe.recv_bytes() for _ in range(PARTS)]

    async def read(part: int) -> int:
        ok, transfer_id = endpoint.read_async(
            conn_id, mr_id, data[part].ctypes.data, PART_BYTES, blobs[part]
        )
        require(ok)
        return await endpoint.wait_async(transfer_id, timeout=30)

    async def read_all() -> int:
        return sum(await asyncio.gather(*(read(part) for part in range(PARTS))))

    print(f"read {asyncio.run(read_all())} bytes", flush=True)
    assert all((data[part] == part).all() for part in range(PARTS))


def server(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    global kept  # the memory must outlive the peer's use of it
    kept = np.repeat(np.arange(PARTS, dtype=np.uint8), PART_BYTES).reshape(PARTS, PART_BYTES)
    ok, mr_id = endpoint.reg(kept.ctypes.data, kept.nbytes)
    require(ok)
    for part in range(PARTS):
        ok, blob = endpoint.advertise(conn_id, mr_id, kept[part].ctypes.data, PART_BYTES)
        require(ok)
        pipe.send_bytes(blob)


if __name__ == "__main__":
    run(client, server)
