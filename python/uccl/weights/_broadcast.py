# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A set of weights from one rank of torch.distributed to the others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uccl.weights._tensors import Tensors


def broadcast(
    tensors: Tensors, src: int = 0, group: Any = None, *, in_place: bool = False, timeout: float = 600.0, **options: Any
) -> None:
    """Brings rank ``src``'s tensors into those of all ranks of the group, as ``torch.distributed.broadcast`` does with one.

    All of them call it, each with the tensors or parts (``Shard``) that it has or wants: a state dict, for one. Bytes
    go by uccl.weights, in a chain; the group carries a place and what became of it. ``src`` is a global rank.
    ``in_place`` needs no memory beside the tensors. ``timeout``: seconds for a rank's bytes. Other options as those of
    ``Publisher``. RuntimeError on every rank, with the cause, if one failed: then nobody's tensors have changed, or,
    in place, they are of no version.
    """
    import torch.distributed as dist

    from uccl.weights import Publisher, Subscriber

    if dist.get_rank(group) < 0:
        return  # not in the group
    told: list[Any] = [None]
    error: Exception | None = None
    with contextlib.ExitStack() as stack:
        member: Any = None
        try:
            if dist.get_rank() == src:
                member = stack.enter_context(Publisher(**options))
                member.publish(1, tensors)
                told = [member.place]
        except Exception as failed:  # noqa: BLE001 - all ranks are told
            error = failed
        dist.broadcast_object_list(told, src=src, group=group)
        try:
            if told[0] is not None and dist.get_rank() != src:
                member = stack.enter_context(Subscriber(told[0], tensors, **options))
                member.stage(1, in_place=in_place, timeout=timeout)
        except Exception as failed:  # noqa: BLE001
            error = failed
        # Nobody leaves before all have what they want of it.
        became: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(became, None if error is None else f"{type(error).__name__}: {error}", group=group)
        if any(became):
            causes = "; ".join(f"rank {rank} of the group: {cause}" for rank, cause in enumerate(became) if cause)
            raise RuntimeError(f"broadcast of weights from rank {src}: {causes}") from error
        if dist.get_rank() != src:
            member.commit()
