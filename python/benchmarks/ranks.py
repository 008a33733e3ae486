# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Two ranks under torchrun: who is who, the memory to move, and the connections between them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from uccl import p2p

_GROUP_TIMEOUT = timedelta(seconds=120)
_CONNECT_SECONDS = 60.0


def local_gpu_index(arguments: argparse.Namespace) -> int:
    if arguments.local_gpu_idx is not None:
        return arguments.local_gpu_idx
    return int(os.environ.get("LOCAL_RANK", "0"))


def make_tensor(arguments: argparse.Namespace, size: int, value: int) -> torch.Tensor:
    """``size`` bytes of one value, where --device says, written when this returns."""
    device = f"cuda:{local_gpu_index(arguments)}" if arguments.device == "gpu" else "cpu"
    tensor = torch.full((size,), value, dtype=torch.uint8, device=device)
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)  # the engine takes memory to be ready when it is posted
    return tensor


@contextmanager
def process_group(backend: str = "gloo") -> Iterator[None]:
    """The group of torchrun's environment."""
    dist.init_process_group(backend, timeout=_GROUP_TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def exchange(value: Any) -> list[Any]:
    """Everyone's value, by rank: bytes, or anything else as text."""
    mine = torch.tensor(list(value), dtype=torch.uint8)
    length = torch.tensor([mine.numel()])
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    longest = max(int(item) for item in lengths)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: mine.numel()] = mine
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return [bytes(item[: int(size)].tolist()) for item, size in zip(gathered, lengths, strict=True)]


@dataclass
class Pair:
    """The endpoint of this rank and its connections with the other: rank 0 connects, rank 1 accepts.

    With --dual there is a second connection the other way round.
    """

    endpoint: p2p.Endpoint
    rank: int
    outgoing: int | None = None
    incoming: int | None = None
    regions: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def connection(self) -> int:
        """The one that exists without --dual."""
        return self.outgoing if self.outgoing is not None else self.incoming  # type: ignore[return-value]

    def region(self, tensor: torch.Tensor) -> int:
        """Registers a tensor once."""
        memory = (tensor.data_ptr(), tensor.numel() * tensor.element_size())
        if memory not in self.regions:
            ok, mr_id = self.endpoint.reg(*memory)
            check(ok)
            self.regions[memory] = mr_id
        return self.regions[memory]


def route(endpoint: p2p.Endpoint, connection: int, device: str) -> str:
    """What carries the bytes between two memories of this device."""
    kind = "cuda" if device == "gpu" else "host"
    rows = [row for row in endpoint.routes(connection) if row["local"] == row["remote"] == kind]
    return rows[0]["transport"] or f"none: {rows[0]['reason']}" if rows else "none yet"


def check(ok: bool) -> None:
    if not ok:
        raise p2p.Error(p2p.last_error())


def connect_pair(arguments: argparse.Namespace, dual: bool = False, local: bool = False) -> Pair:
    """Connects ranks 0 and 1 of the process group."""
    if dist.get_world_size() != 2:
        raise SystemExit("this benchmark needs two ranks (torchrun --nproc_per_node=2, or two nodes)")
    rank = dist.get_rank()
    endpoint = p2p.Endpoint(local_gpu_index(arguments), 4)
    peer = exchange(endpoint.get_metadata())[1 - rank]
    pair = Pair(endpoint, rank)
    # Rank 1 dials second, so that each side always has one that dials and one that accepts.
    for dialler in (0, 1) if dual else (0,):
        if rank == dialler:
            pair.outgoing = _dial(endpoint, peer, local)
        else:
            accepted = endpoint.accept_local(_CONNECT_SECONDS) if local else endpoint.accept(_CONNECT_SECONDS)
            check(accepted[0])
            pair.incoming = accepted[-1]
    return pair


def _dial(endpoint: p2p.Endpoint, metadata: bytes, local: bool) -> int:
    address, port, gpu = p2p.Endpoint.parse_metadata(metadata)
    ok, connection = endpoint.connect_local(gpu, port) if local else endpoint.connect(address, gpu, port)
    check(ok)
    return connection


def pieces(tensor: torch.Tensor, count: int) -> tuple[list[int], list[int]]:
    """Addresses and sizes of a tensor cut into ``count`` equal parts (the last takes the rest)."""
    size = tensor.numel() * tensor.element_size()
    each = size // count
    sizes = [each] * (count - 1) + [size - each * (count - 1)]
    return [tensor.data_ptr() + index * each for index in range(count)], sizes


def verify(tensor: torch.Tensor, value: int) -> None:
    """Every byte of what arrived."""
    wrong = int((tensor != value).sum())
    if wrong:
        raise SystemExit(f"{wrong} of {tensor.numel()} bytes are wrong")
