# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that torch.distributed brought together move tensors by uccl.p2p: descriptions travel by its store, bytes by
the engine. Each rank reads the next one's tensors and writes into the previous one's. Then the last rank's weights are
broadcast by uccl.weights. Started by torchrun."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from uccl import p2p
from uccl.weights import Shard, broadcast

_SECONDS = 60
_BYTES = 8 << 20


def broadcast_weights(rank: int, ranks: int, device: str) -> None:
    """Each other rank wants all of one tensor and some columns of the other, then what nobody has."""
    src = ranks - 1
    whole = torch.arange(64 * 12, dtype=torch.float32).reshape(64, 12).to(torch.bfloat16).to(device)
    columns = (2 * rank, 2 * rank + 2)
    state = {"embed": torch.zeros(1000, device=device), "w": torch.zeros(64, 2, dtype=torch.bfloat16, device=device)}
    if rank == src:
        state = {"embed": torch.arange(1000, dtype=torch.float32, device=device), "w": whole}
    wanted = state if rank == src else state | {"w": Shard(state["w"], (0, columns[0]), (64, 12))}
    for in_place in (False, True):
        if in_place and device != "cpu":
            break
        broadcast(wanted, src=src, in_place=in_place, timeout=_SECONDS)
        assert bool((state["embed"].cpu() == torch.arange(1000)).all())
        assert rank == src or torch.equal(state["w"], whole[:, columns[0] : columns[1]])
        state["embed"].mul_(1 if rank == src else 0)
    try:
        broadcast(wanted if rank else {"other": torch.zeros(3, device=device)}, src=src, timeout=_SECONDS)
    except RuntimeError as error:
        assert "rank 0 of the group: InvalidArgument" in str(error) and "'other'" in str(error), error
    else:
        raise AssertionError("a broadcast of which one rank wants another tensor succeeded")
    assert rank in (0, src) or not bool(state["embed"].any()), "committed though one rank failed"


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=_SECONDS))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    gpu = int(os.environ["LOCAL_RANK"]) if torch.cuda.is_available() else None
    device = "cpu" if gpu is None else f"cuda:{gpu}"

    endpoint = p2p.Endpoint(gpu or 0, 2)
    endpoint.start_passive_accept()
    mine = torch.full((_BYTES,), rank + 1, dtype=torch.uint8, device=device)
    inbox = torch.zeros(_BYTES, dtype=torch.uint8, device=device)
    regions = endpoint.register_memory([mine, inbox])
    told: list[tuple[bytes, bytes]] = [(b"", b"")] * ranks
    dist.all_gather_object(told, (endpoint.get_metadata(), endpoint.get_serialized_descs(regions)))

    following, previous = (rank + 1) % ranks, (rank - 1) % ranks
    copy = torch.zeros_like(mine)
    copy_region = endpoint.register_memory([copy])
    transfers = []
    for peer, verb, local, which in ((following, "read", copy_region, 0), (previous, "write", regions[:1], 1)):
        metadata, descriptions = told[peer]
        ok, connection = endpoint.add_remote_endpoint(metadata)
        assert ok, p2p.last_error()
        remote = endpoint.deserialize_descs(descriptions)[which : which + 1]
        ok, transfer = endpoint.transfer(connection, verb, local, remote)
        assert ok, p2p.last_error()
        transfers.append(transfer)
    for transfer in transfers:
        assert endpoint.wait(transfer, timeout=_SECONDS) == _BYTES
    dist.barrier()
    assert bool((copy == following + 1).all()), "what was read"
    assert bool((inbox == following + 1).all()), "what the next rank wrote here"
    broadcast_weights(rank, ranks, device)
    if rank == 0:
        route = endpoint.routes(connection)[0]["transport"]
        print(f"torch {torch.__version__}: {ranks} ranks on {device.partition(':')[0]}, by {route}, all right", flush=True)
    dist.barrier()  # nobody goes while others read from him
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
