# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Sends a NumPy array to another process."""

from multiprocessing.connection import Connection

import numpy as np
from two_processes import require, run

from uccl import p2p


def client(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    data = np.arange(1_000_000, dtype=np.float32)
    ok, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
    require(ok)
    require(endpoint.send(conn_id, mr_id, data.ctypes.data, data.nbytes))


def server(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    data = np.zeros(1_000_000, dtype=np.float32)
    ok, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
    require(ok)
    require(endpoint.recv(conn_id, mr_id, data.ctypes.data, data.nbytes))
    assert np.array_equal(data, np.arange(1_000_000, dtype=np.float32))
    print(f"received {data.nbytes} bytes over {endpoint.routes(conn_id)[0]['transport']}", flush=True)


if __name__ == "__main__":
    run(client, server)
