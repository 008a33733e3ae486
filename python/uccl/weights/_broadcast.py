# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A set of weights from one rank of torch.distributed to the others, or from all to all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from uccl.weights import Publisher
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

    from uccl.weights import Subscriber

    if dist.get_rank(group) < 0:
        return  # not in the group
    source = dist.get_rank() == src
    with contextlib.ExitStack() as stack:
        place, error = _try(lambda: _published(stack, tensors, options).place if source else None)
        told = [place]
        dist.broadcast_object_list(told, src=src, group=group)

        def take() -> Any:
            if source or told[0] is None:
                return None
            member = stack.enter_context(Subscriber(told[0], tensors, **options))
            member.stage(1, in_place=in_place, timeout=timeout)
            return member

        member, failed = _try(take)
        _agree(f"broadcast of weights from rank {src}", error or failed, group)
        if member is not None:
            member.commit()


def reshard(
    held: Tensors, wanted: Tensors, group: Any = None, *, in_place: bool = False, timeout: float = 600.0, **options: Any
) -> None:
    """Brings what all ranks of the group hold together into what each of them wants, which may be cut otherwise.

    ``held`` has the parts (``Shard``) of this rank, as of FSDP; ``wanted`` the tensors or parts that it wants, as for
    tensor parallelism. Both may be empty. Else as `broadcast`.
    """
    import torch.distributed as dist

    from uccl.weights import RanksSubscriber

    rank = dist.get_rank(group)
    if rank < 0:
        return  # not in the group
    count = dist.get_world_size(group)
    with contextlib.ExitStack() as stack:
        part, error = _try(lambda: _published(stack, held, options).part(held, rank, count))
        parts: list[Any] = [None] * count
        dist.all_gather_object(parts, part, group=group)

        def take() -> Any:
            if None in parts:
                return None
            member = stack.enter_context(RanksSubscriber(parts, wanted, turn=rank, **options))
            member.stage(1, in_place=in_place, timeout=timeout)
            return member

        member, failed = _try(take)
        _agree("resharding of weights", error or failed, group)
        member.commit()


def _published(stack: contextlib.ExitStack, tensors: Tensors, options: dict[str, Any]) -> Publisher:
    from uccl.weights import Publisher

    made = stack.enter_context(Publisher(**options))
    made.publish(1, tensors)
    return made


def _try(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What it gives, or why not: the other ranks are told before this one raises it."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error


def _agree(what: str, error: Exception | None, group: Any) -> None:
    """Waits until all have what they want of each other. RuntimeError on all ranks if one has failed."""
    import torch.distributed as dist

    became: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(became, None if error is None else f"{type(error).__name__}: {error}", group=group)
    if any(became):
        causes = "; ".join(f"rank {rank} of the group: {cause}" for rank, cause in enumerate(became) if cause)
        raise RuntimeError(f"{what}: {causes}") from error
