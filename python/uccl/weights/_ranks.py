# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One version of which several publishers hold a part each."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uccl._errors import NotFound
from uccl.weights._tensors import Box, Shard, Tensors, boxes_of

if TYPE_CHECKING:
    from uccl.weights import Progress, Subscriber

_Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Where one of ``count`` publishers is, and the boxes that it holds (`Publisher.part`). May be pickled."""

    place: str
    rank: int
    count: int
    boxes: tuple[tuple[str, _Numbers, _Numbers, _Numbers], ...]  # name, offset, size, shape of the whole


def part_of(place: str, tensors: Tensors, rank: int, count: int) -> Part:
    if not 0 <= rank < count:
        raise ValueError(f"rank {rank} is none of {count}")
    boxes = boxes_of(tensors, writable=True)  # nothing is copied
    return Part(place, rank, count, tuple((box.name, tuple(box.offset), box.size, tuple(box.shape)) for box in boxes))


def _meet(
    a: Sequence[int], a_size: Sequence[int], b: Sequence[int], b_size: Sequence[int]
) -> tuple[_Numbers, _Numbers] | None:
    """Offset and size, in the whole tensor, of what is in both boxes; None: nothing is."""
    begin = tuple(max(one, other) for one, other in zip(a, b, strict=True))
    end = tuple(min(one + n, other + m) for one, n, other, m in zip(a, a_size, b, b_size, strict=True))
    if any(first >= last for first, last in zip(begin, end, strict=True)):
        return None
    return begin, tuple(last - first for first, last in zip(begin, end, strict=True))


def _view(box: Box, offset: _Numbers, size: _Numbers) -> Shard:
    slices = tuple(slice(at - start, at - start + n) for at, start, n in zip(offset, box.offset, size, strict=True))
    return Shard(box.tensor[slices] if slices else box.tensor, offset, box.shape)


def split(tensors: Tensors, parts: Sequence[Part], turn: int = 0) -> dict[int, dict[str, list[Shard]]]:
    """Which boxes of the tensors come from which rank. Of ranks that hold the same, ``turn`` chooses.

    ValueError, with the tensor's name: shapes do not meet, nobody holds an element, or two hold it with other boxes.
    """
    holders: dict[str, dict[tuple[_Numbers, _Numbers], list[int]]] = {}
    shapes: dict[str, _Numbers] = {}
    for part in parts:
        for name, offset, size, shape in part.boxes:
            if shapes.setdefault(name, shape) != shape:
                raise ValueError(f"tensor '{name}' has the shape {shape} at rank {part.rank} and {shapes[name]} before")
            holders.setdefault(name, {}).setdefault((offset, size), []).append(part.rank)
    taken: dict[int, dict[str, list[Shard]]] = {}
    for box in boxes_of(tensors, writable=True):
        if shapes.get(box.name) != tuple(box.shape):
            held = f"has the shape {shapes[box.name]} there" if box.name in shapes else "is held by no rank"
            raise ValueError(f"tensor '{box.name}' of the shape {tuple(box.shape)} {held}")
        mine: list[Shard] = []
        for (offset, size), ranks in holders[box.name].items():
            met = _meet(box.offset, box.size, offset, size)
            if met is None:
                continue
            if any(_meet(*met, one.offset, tuple(one.tensor.shape)) for one in mine):
                raise ValueError(f"tensor '{box.name}' is held by ranks whose boxes overlap without being equal")
            mine.append(_view(box, *met))
            taken.setdefault(ranks[turn % len(ranks)], {}).setdefault(box.name, []).append(mine[-1])
        if sum(math.prod(one.tensor.shape) for one in mine) != math.prod(box.size):
            raise ValueError(f"tensor '{box.name}' is held in part by no rank")
    return taken


class RanksSubscriber:
    """A `Subscriber` of versions that several publishers hold together, each a part.

    A version is whole once all that hold something of ``tensors`` have published it and it has come from each; else
    nothing of it counts. ``parts`` are those of all ranks. Ranks that hold the same take turns by ``turn``, which each
    subscriber may choose. Other arguments as those of `Subscriber`, one of which there is for each rank that is taken
    from. ValueError: a rank is missing, or the parts do not fill the tensors.
    """

    def __init__(self, parts: Iterable[Part], tensors: Tensors, *, turn: int = 0, **options: Any) -> None:
        from uccl.weights import Subscriber

        ranks = {part.rank: part for part in parts}
        count = max((part.count for part in ranks.values()), default=0)
        missing = sorted(set(range(count)) - set(ranks))
        if missing or not ranks or any(part.count != count for part in ranks.values()):
            raise ValueError(f"not the parts of all ranks: of {count}, {missing} are missing, or they differ in number")
        self._count = count
        self._taken: dict[int, Subscriber] = {}
        try:
            for rank, boxes in sorted(split(tensors, list(ranks.values()), turn).items()):
                self._taken[rank] = Subscriber(ranks[rank].place, boxes, **options)
        except BaseException:
            self.close()
            raise
        self._version: int | None = None
        self._staged: int | None = None  # and not committed, at least not at all ranks

    @property
    def version(self) -> int | None:
        """What the tensors hold: the version that was committed last. None: not one."""
        return self._version

    def wait_version(self, above: int | None = None, timeout: float | None = None) -> int:
        """The newest version that all ranks offer that are taken from, once it is more than ``above``. TimedOut.

        It is that of the rank that is most behind: the others are to offer it, too, until it has been staged.
        """
        end = None if timeout is None else time.monotonic() + timeout
        newest: list[int] = []
        for rank in self._taken:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            newest.append(self._of(rank, lambda one, left=left: one.wait_version(above, left)))
        return min(newest)

    def stage(self, version: int, *, timeout: float | None = None, in_place: bool = False) -> dict[int, Progress]:
        """Receives a version from all ranks at once, as `Subscriber.stage`; what came, by rank.

        The error says of which rank it is, that of the lowest first; then nothing is staged.
        """
        self._staged = None
        if in_place:
            self._version = None
        given_up = False
        under_way = 0
        changed = threading.Condition()

        def go_on(_: Progress | None = None) -> None:
            if given_up:
                raise RuntimeError("the stage was interrupted")

        def stage(one: Subscriber) -> Progress:
            nonlocal under_way
            with changed:
                go_on()
                under_way += 1
            try:
                return one.stage(version, timeout=timeout, in_place=in_place, progress=go_on)
            finally:
                with changed:
                    under_way -= 1
                    changed.notify_all()

        whole = False
        try:
            with ThreadPoolExecutor(max(len(self._taken), 1)) as threads:
                try:
                    staged = {rank: threads.submit(self._of, rank, stage) for rank in self._taken}
                    wait(staged.values())
                except BaseException:  # a signal's, of which those threads hear nothing
                    # Nor does the pool know a thread during whose start it came, and would not wait for it.
                    with changed:
                        given_up = True
                        changed.wait_for(lambda: under_way == 0)
                    raise
            whole = not any(one.exception() for one in staged.values())
            self._staged = version if whole else None
        finally:
            if not whole:
                for one in self._taken.values():
                    one._take_back()  # noqa: SLF001
        return {rank: one.result() for rank, one in staged.items()}

    def commit(self) -> int:
        """Makes the staged version that of the tensors. NotFound: none is staged.

        Where a signal interrupts it the tensors are of no version; another call ends it.
        """
        staged = self._staged
        if staged is None:
            raise NotFound("no version of the weights is staged")
        self._version = None
        for one in self._taken.values():
            try:
                one.commit()
            except NotFound:
                if one.version != staged:
                    raise
        self._version, self._staged = staged, None
        return staged

    def close(self) -> None:
        """Ends it; what was committed stays. May be repeated."""
        for one in self._taken.values():
            one.close()

    def _of(self, rank: int, call: Any) -> Any:
        try:
            return call(self._taken[rank])
        except Exception as error:
            raise type(error)(f"rank {rank} of {self._count}: {error}") from error

    def __enter__(self) -> RanksSubscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
