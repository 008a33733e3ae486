#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One host of what stands beside uccl.weights in scripts/weights_bench.py, which starts it.

Usage: weights_peer.py gloo|writes|verl RANK COUNT BYTES ADDRESS FIRST_ADDRESS

"gloo": torch.distributed's broadcast. "writes": rank 0 writes to each of the others at once by uccl.p2p. "verl": verl's
checkpoint engine `nixl` over UCX, in a chain. Says "ok" and its place once all have met, begins when it is told to, and
says "ok BYTES 0 0 0 END" with END in seconds of the steady clock once every byte is compared; the ranks that are written
to are through when rank 0 is.
"""

import asyncio
import functools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ |= {"GLOO_SOCKET_IFNAME": "cable", "UCX_NET_DEVICES": "cable", "UCX_TLS": "tcp,self"}

import torch
import torch.distributed as dist

from uccl import p2p


def writes(rank, count, memory, address):
    """What brings rank 0's bytes to the others, once all are connected."""
    endpoint = p2p.Endpoint(0, 2, listen_address=address)
    metadata = [None] * count
    dist.all_gather_object(metadata, endpoint.get_metadata())
    ok, region = endpoint.reg(memory.data_ptr(), memory.numel())
    assert ok, p2p.last_error()
    connections, offered = {}, b""
    if rank == 0:
        for other in range(1, count):
            host, port, gpu = p2p.Endpoint.parse_metadata(metadata[other])
            ok, connections[other] = endpoint.connect(host, gpu, port)
            assert ok, p2p.last_error()
    else:
        ok, _, _, connection = endpoint.accept()
        assert ok, p2p.last_error()
        ok, offered = endpoint.advertise(connection, region, memory.data_ptr(), memory.numel())
        assert ok, p2p.last_error()
    descriptors = [None] * count
    dist.all_gather_object(descriptors, offered)

    def write(other):
        if not endpoint.write(connections[other], region, memory.data_ptr(), memory.numel(), descriptors[other]):
            raise SystemExit(p2p.last_error())

    def call():
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(write, connections))

    return call


_BUCKET = 4 << 20  # of which verl's engine fills one while the other leaves


def verl_engine(address):
    """verl's engine on host memory. It asks for a GPU where it needs none: pinned memory, cupy, a wait; and Ray for its
    address."""
    import nixl._api  # it asks cupy which CUDA there is, so before the stand-in

    sys.modules["cupy"] = MagicMock()
    torch.cuda.synchronize = lambda: None
    zeros = torch.zeros
    torch.zeros = lambda *shape, pin_memory=False, **how: zeros(*shape, **how)
    import ray
    from verl.plugin.platform.platform_manager import PlatformBase, PlatformRegistry

    ray.util.get_node_ip_address = lambda: address

    class Cpu(PlatformBase):
        device_name = vendor_name = "cpu"
        device_module = SimpleNamespace(device_count=lambda: 1)
        is_available = staticmethod(lambda: True)

    Cpu.__abstractmethods__ = frozenset()  # what training asks of a platform is not asked here
    PlatformRegistry.register(platform="cpu")(Cpu)
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.checkpoint_engine import CheckpointEngineRegistry

    return CheckpointEngineRegistry.new("nixl", bucket_size=_BUCKET, device="cpu")


def verl(rank, count, memory, address):
    """Each rank gets the memory in buckets from the one before it."""
    engine = verl_engine(address)
    metadata = [None] * count
    dist.all_gather_object(metadata, engine.prepare())
    first, others = engine.build_topology(1, count - 1, metadata)
    mine = {key: (first[key] + others[key])[rank] for key in others if key != "method"}
    engine.init_process_group(**mine)
    parts = {str(at): part for at, part in enumerate(memory.split(_BUCKET))}

    async def receive():
        async for name, part in engine.receive_weights():
            parts[name].copy_(part)

    return lambda: asyncio.run(receive() if rank else engine.send_weights(iter(parts.items())))


def main():
    kind, address, first = sys.argv[1], *sys.argv[5:7]
    rank, count, size = map(int, sys.argv[2:5])
    dist.init_process_group("gloo", init_method=f"tcp://{first}:29500", rank=rank, world_size=count,
                            timeout=timedelta(seconds=600))  # fmt: skip
    whole = (torch.arange(size // 8) * 0x5851F42D4C957F2D).view(torch.uint8)
    memory = whole if rank == 0 else torch.zeros_like(whole)
    kinds = {"writes": writes, "verl": verl}
    call = kinds[kind](rank, count, memory, address) if kind in kinds else functools.partial(dist.broadcast, memory, 0)
    dist.barrier()
    print(f"ok {address} 0", flush=True)
    sys.stdin.readline()
    call()
    end = time.monotonic()
    dist.barrier()
    if not torch.equal(memory, whole):
        raise SystemExit(f"rank {rank}: wrong bytes")
    print(f"ok {size} 0 0 0 {end}", flush=True)
    sys.stdin.readline()  # nobody leaves before it is told to


if __name__ == "__main__":
    main()
