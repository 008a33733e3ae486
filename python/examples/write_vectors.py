# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Writes 10 000 blocks of a KV cache in one call, with NumPy arrays for the lists."""

from multiprocessing.connection import Connection

import numpy as np
from two_processes import require, run

from uccl import p2p

BLOCKS = 10_000
BLOCK_BYTES = 4096


def client(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    cache = np.random.default_rng(0).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    ok, mr_id = endpoint.reg(cache.ctypes.data, cache.nbytes)
    require(ok)
    blob = pipe.recv_bytes()

    # Block i goes to place BLOCKS - 1 - i: one 64-byte blob each, with its address and size edited.
    places = np.arange(BLOCKS - 1, -1, -1, dtype=np.uint64)
    base = int.from_bytes(blob[:8], "little")
    blobs = np.tile(np.frombuffer(blob, np.uint8), (BLOCKS, 1))
    blobs[:, :8] = (places * np.uint64(BLOCK_BYTES) + np.uint64(base)).reshape(-1, 1).view(np.uint8)
    blobs[:, 8:12] = np.full((BLOCKS, 1), BLOCK_BYTES, np.uint32).view(np.uint8)

    regions = np.full(BLOCKS, mr_id, np.uint64)
    pointers = np.arange(BLOCKS, dtype=np.uint64) * np.uint64(BLOCK_BYTES) + np.uint64(cache.ctypes.data)
    sizes = np.full(BLOCKS, BLOCK_BYTES, np.uint64)
    require(endpoint.writev(conn_id, regions, pointers, sizes, blobs, BLOCKS))
    print(f"wrote {BLOCKS} blocks", flush=True)

    copy = np.zeros_like(cache)
    ok, copy_id = endpoint.reg(copy.ctypes.data, copy.nbytes)
    require(ok)
    require(endpoint.read(conn_id, copy_id, copy.ctypes.data, copy.nbytes, blob))
    assert np.array_equal(copy[::-1], cache)


def server(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    global kept  # the memory must outlive the peer's use of it
    kept = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    ok, mr_id = endpoint.reg(kept.ctypes.data, kept.nbytes)
    require(ok)
    ok, blob = endpoint.advertise(conn_id, mr_id, kept.ctypes.data, kept.nbytes)
    require(ok)
    pipe.send_bytes(blob)


if __name__ == "__main__":
    run(client, server)
