#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One host of what stands beside uccl.weights in scripts/weights_bench.py, which starts it.

Usage: weights_peer.py gloo|writes RANK COUNT BYTES ADDRESS FIRST_ADDRESS

"gloo": torch.distributed's broadcast. "writes": rank 0 writes to each of the others at once by uccl.p2p. Says "ok" and
its place once all have met, begins when it is told to, and says "ok BYTES 0 0 0 END" with END in seconds of the steady
clock once every byte is compared; the ranks that are written to are through when rank 0 is.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

os.environ["GLOO_SOCKET_IFNAME"] = "cable"

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


def main():
    kind, address, first = sys.argv[1], *sys.argv[5:7]
    rank, count, size = map(int, sys.argv[2:5])
    dist.init_process_group("gloo", init_method=f"tcp://{first}:29500", rank=rank, world_size=count,
                            timeout=timedelta(seconds=600))  # fmt: skip
    whole = (torch.arange(size // 8) * 0x5851F42D4C957F2D).view(torch.uint8)
    memory = whole if rank == 0 else torch.zeros_like(whole)
    call = writes(rank, count, memory, address) if kind == "writes" else lambda: dist.broadcast(memory, 0)
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
