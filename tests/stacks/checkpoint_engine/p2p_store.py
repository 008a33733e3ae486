# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""checkpoint-engine's P2PStore in two processes, its TransferEngine uccl.mooncake's, on host memory.

Needs `mooncake` on the path (`python -m uccl.mooncake install`). Its DeviceManager wants a GPU; what the store asks of
it is answered here.
"""

import os
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace

import other_process
import torch
from checkpoint_engine.p2p_store import P2PStore

from uccl.mooncake import TransferEngine

ROUTES = ("auto", "tcp")
_SIZE = 8 << 20


def contents(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (_SIZE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def store(route: str, rank: int) -> P2PStore:
    os.environ |= {"UCCL_P2P_TRANSPORT": route, "RANK": str(rank)}
    module = SimpleNamespace(device_count=lambda: 2)
    made = P2PStore(SimpleNamespace(device_module=module, rdma_device=lambda _: "mlx5_0", transfer_engine_protocol="rdma"))
    assert isinstance(made.engine, TransferEngine), made.engine
    return made


def own(reader: Connection) -> None:
    for route in ROUTES:
        owner = store(route, 0)
        tensors = {"layer.0": contents(1), "layer.1": contents(2)}
        owner.register_named_tensors(tensors)
        reader.send((owner.addr, [tensor.data_ptr() for tensor in tensors.values()]))
        other_process.hear(reader, route)
        assert owner.unregister_named_tensors(["layer.0", "layer.1"]) == 2


def main() -> None:
    owner, here = other_process.start(own)
    for route in ROUTES:
        reader = store(route, 1)
        bucket = torch.zeros(2 * _SIZE, dtype=torch.uint8)
        reader.register_named_tensors({"bucket": bucket})
        addr, (first, second) = other_process.hear(here, route)
        start = bucket.data_ptr()
        reader.batch_transfer_sync_read(addr, [start + _SIZE, start], [first, second], [_SIZE, _SIZE])
        assert torch.equal(bucket, torch.cat([contents(2), contents(1)]))
        try:
            reader.batch_transfer_sync_read(addr, [start], [first + 1], [_SIZE])
        except AssertionError:  # how the store says that it failed
            pass
        else:
            sys.exit("a read beyond the owner's memory succeeded")
        here.send("done")
        print(f"checkpoint-engine's P2PStore, route {route}: {2 * _SIZE >> 20} MiB, every byte compared", flush=True)
    other_process.finish(owner)


if __name__ == "__main__":
    main()
