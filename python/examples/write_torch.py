# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Writes a torch tensor into another process's, which calls nothing while it happens."""

from multiprocessing.connection import Connection

import torch
from two_processes import require, run

from uccl import p2p


def client(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    tensor = torch.linspace(0, 1, 4096, dtype=torch.bfloat16)
    remote = endpoint.deserialize_descs(pipe.recv_bytes())
    local = endpoint.register_memory([tensor])
    ok, transfer_id = endpoint.transfer(conn_id, "write", local, remote)
    require(ok)
    size = endpoint.wait(transfer_id, timeout=30)
    route = endpoint.routes(conn_id)[0]["transport"]
    print(f"wrote {size} bytes, a tensor of {tensor.dtype}, over {route}", flush=True)
    # Visible there when it is done here: what is read back is what was written.
    copy = torch.zeros_like(tensor)
    ok, transfer_id = endpoint.transfer(conn_id, "read", endpoint.register_memory([copy]), remote)
    require(ok)
    endpoint.wait(transfer_id, timeout=30)
    assert torch.equal(copy, tensor)


def server(endpoint: p2p.Endpoint, conn_id: int, pipe: Connection) -> None:
    global kept  # the memory must outlive the peer's use of it
    kept = torch.zeros(4096, dtype=torch.bfloat16)
    pipe.send_bytes(endpoint.get_serialized_descs(endpoint.register_memory([kept])))


if __name__ == "__main__":
    run(client, server)
