# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Chunks of a KV cache between two processes by LMCache's channels, on host memory.

One goes over NIXL with the backend TCPX, the other calls Mooncake's TransferEngine, which is uccl.mooncake's. The owner
fills its chunks with random bytes of a known seed. The reader fetches them in another order, over the default route and
over tcp, and compares every byte.
"""

import os
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection

import other_process
import torch
from address import free_address  # beside this script
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.config import L1MemoryManagerConfig
from lmcache.v1.distributed.error import L1Error
from lmcache.v1.distributed.memory_manager import L1MemoryManager
from lmcache.v1.distributed.transfer_channel import (
    TransferChannelAddress,
    delete_transfer_channel_context,
    initialize_transfer_channel_context,
)

_SECONDS = 100  # two cores that others use, too
CHANNELS = {"nixl": {"backends": ["TCPX"]}, "mooncake_te": {}}  # and what it is told
WAYS = [(channel, route) for channel in CHANNELS for route in ("auto", "tcp")]
_CHUNKS = 4
_SHAPE = torch.Size([2, 4, 256, 256])  # keys and values, layers, tokens, width
_BUFFER = 64 << 20


def contents(chunk: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(chunk + 1)
    return torch.randint(0, 256, (_SHAPE.numel() * 2,), dtype=torch.uint8, generator=random)


@contextmanager
def opened(kind: str, url: str):
    """LMCache's memory for the chunks, and its channel."""
    memory = L1MemoryManager(L1MemoryManagerConfig(size_in_bytes=_BUFFER, use_lazy=False, shm_name=""))
    error, chunks = memory.allocate(MemoryLayoutDesc(shapes=[_SHAPE], dtypes=[torch.bfloat16]), _CHUNKS)
    assert error == L1Error.SUCCESS, error
    channel = initialize_transfer_channel_context(
        kind, l1_memory_desc=memory.get_l1_memory_desc(), listen_url=url, advertise_url=url, **CHANNELS[kind]
    )
    try:
        yield channel, chunks
    finally:
        delete_transfer_channel_context()
        memory.free(chunks)
        memory.close()


def bytes_of(chunk) -> torch.Tensor:
    return chunk.tensor.contiguous().view(torch.uint8).flatten()


def own(reader: Connection) -> None:
    for kind, route in WAYS:
        os.environ["UCCL_P2P_TRANSPORT"] = route
        url = free_address()
        with opened(kind, url) as (_, chunks):
            for number, chunk in enumerate(chunks):
                chunk.tensor.copy_(contents(number).view(torch.bfloat16).reshape(_SHAPE))
            reader.send((url, [(chunk.shm_offset, chunk.shm_byte_length) for chunk in chunks]))
            other_process.hear(reader, f"{kind}, {route}")


def fetch(kind: str, url: str, places: list[tuple[int, int]]) -> None:
    with opened(kind, free_address()) as (channel, chunks):
        order = list(reversed(range(_CHUNKS)))
        local = channel.get_transfer_channel_address([(chunk.shm_offset, chunk.shm_byte_length) for chunk in chunks])
        client = channel.get_transfer_channel_client(url)
        task = client.submit_read(local, [TransferChannelAddress(*places[number]) for number in order])
        end = time.monotonic() + _SECONDS
        while not (result := client.query_read_status(task)).is_finished():
            assert time.monotonic() < end, f"not read within {_SECONDS} s"
        assert all(result.succeeded_mask), result
        for chunk, number in zip(chunks, order, strict=True):
            wrong = int((bytes_of(chunk) != contents(number)).sum())
            assert wrong == 0, f"chunk {number}: {wrong} bytes differ"


def main() -> None:
    owner, here = other_process.start(own)
    for kind, route in WAYS:
        os.environ["UCCL_P2P_TRANSPORT"] = route
        fetch(kind, *other_process.hear(here, f"{kind}, {route}"))
        here.send("done")
        print(f"LMCache's channel {kind}, route {route}: {_CHUNKS} chunks of 1 MiB, every byte compared", flush=True)
    other_process.finish(owner)


if __name__ == "__main__":
    main()
