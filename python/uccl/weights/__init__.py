# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One set of weights to many processes, over whatever transport the engine finds.

A `Publisher` offers versions of named tensors; a `Subscriber` receives them into its own, which may be cut
otherwise, and gives on what has come, so that the publisher's network interface carries each byte about once.
Tensors are torch's or NumPy's, of the host and of GPUs.

``python -m uccl.weights demo`` shows it on one machine.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from uccl import _p2p
from uccl._errors import NotFound
from uccl.directory import Directory, DirectoryError
from uccl.weights._broadcast import broadcast, reshard
from uccl.weights._listing import Listing
from uccl.weights._ranks import Part, RanksSubscriber, part_of
from uccl.weights._tensors import Box, Shard, Staging, Tensors, boxes_of, manifest_of, wait_for_gpus

__all__ = ["Part", "Progress", "Publisher", "RanksSubscriber", "Shard", "Subscriber", "broadcast", "reshard"]


@dataclass(frozen=True)
class Progress:
    """How far a version has come; counters are of one stage."""

    version: int
    bytes: int
    total_bytes: int  # 0: not known yet
    publisher_bytes: int  # of `bytes`, from the publisher itself
    wrong_digests: int  # chunks that came wrong, and came again
    bridged: int  # times that a lost or slow member was passed over
    delta_bytes: int  # that came as deltas (`Publisher.publish`)
    from_deltas: int  # of `bytes`, made of those and of the base
    no_delta: str  # why bytes come whole though deltas are offered; empty: none do
    source: str  # host:port of whom bytes are taken from; empty: nobody yet
    # Seconds since the stage began, 0 before: until somebody offered the version, the publisher had said that this one
    # takes part, a chunk had come and its digest was right, and the latest chunk had come.
    offered: float = 0.0
    joined: float = 0.0
    first: float = 0.0
    last: float = 0.0
    given_bytes: int = 0  # that others have taken from here, as they say
    waited: float = 0.0  # seconds in which something lacked and nothing was under way
    waits_for: str = ""  # host:port of whom it waits for now; empty: it does not


_Closable = Any
_open: weakref.WeakSet[_Closable] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for one in list(_open):
        one.close()


class Publisher:
    """Offers versions to subscribers, which connect to ``place``. Any thread; close() or ``with`` ends it.

    ``directory`` lists it and its versions under the name of these weights, for subscribers that are given no place.
    Other options are those of ``uccl.p2p.Endpoint``: ``listen_address=``, ``key_file=`` and so on. DirectoryError: the
    directory cannot be reached.
    """

    def __init__(self, *, directory: Directory | None = None, name: str = "weights", **options: object) -> None:
        self._listing = None if directory is None else Listing(directory, name)
        self._made = _p2p.WeightsPublisher(**options)
        self._kept: dict[int, list[Box]] = {}
        if self._listing is not None:
            self._listing.put(self.place)
        _open.add(self)

    @property
    def place(self) -> str:
        """host:port, for subscribers."""
        return str(self._made.place)

    def publish(self, version: int, tensors: Tensors, *, base: int | None = None, copy: bool = False) -> None:
        """Offers a version. The tensors must stay as they are until it is withdrawn, unless ``copy`` is set.

        Those of GPUs are read where they lie, once the current streams of these GPUs have done what they have to
        do now: this waits for it. Copies are in host memory; tensors with gaps, or of other devices, are copied in
        any case. ``base``: a version that is published here, with bytes of its own; subscribers that hold it
        receive what differs from it. InvalidArgument: the version is there; NotFound: the base is not.
        """
        boxes = boxes_of(tensors, copy=copy)
        wait_for_gpus(boxes)
        self._made.publish(version, manifest_of(boxes), base)
        self._kept[version] = boxes
        self._list()

    def part(self, tensors: Tensors, rank: int, count: int) -> Part:
        """What a `RanksSubscriber` is to know of this one, if ``count`` publishers hold parts of each version.

        ``tensors``: as all versions of this rank have them, with the boxes that it holds.
        """
        return part_of(self.place, tensors, rank, count)

    def withdraw(self, version: int) -> None:
        """Ends the offer; when it returns, no peer reads tensors of the host any more. NotFound: there is none.

        Those of a GPU stay mapped at peers, for the next version there, until the memory is freed or this ends; what
        peers read of it meanwhile they take for wrong.
        """
        self._made.withdraw(version)
        self._kept.pop(version, None)
        self._list()

    def copies(self, version: int) -> int:
        """How many subscribers have said that all of the version has come."""
        return int(self._made.copies(version))

    def wait_copies(self, version: int, count: int = 1, timeout: float | None = None) -> None:
        """Waits until there are that many: after one the publisher may go. TimedOut after so many seconds."""
        self._made.wait_copies(version, count, timeout)

    def close(self) -> None:
        """Leaves. May be repeated."""
        if self._listing is not None:
            self._listing.withdraw()
        self._made.close()
        self._kept.clear()

    def _list(self) -> None:
        if self._listing is not None:
            self._listing.put(self.place, self._kept)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscriber:
    """Receives versions into ``tensors``, and gives them on. Any thread, but one stage() at a time.

    ``publishers`` are "host:port" of a publisher, or of subscribers that hold a version (``place``); or a directory,
    which lists them under the ``name`` of these weights, and this one once it has a version. With a directory
    ``place`` changes when somebody new has to be asked. A directory that goes down later is missed by nobody who is known.
    ``chunk_bytes``: what goes from one to the next at a time; 0: 4 to 32 MiB. ``stall``: with nobody left who
    has what is missing, stage() fails after so many seconds. Other options as those of ``Publisher``.
    """

    def __init__(
        self,
        publishers: str | Iterable[str] | Directory,
        tensors: Tensors,
        *,
        name: str = "weights",
        chunk_bytes: int = 0,
        stall: float = 10.0,
        **options: object,
    ) -> None:
        boxes = boxes_of(tensors, writable=True)
        self._listing: Listing | None = None
        if isinstance(publishers, Directory):
            self._listing = Listing(publishers, name)
            places = list(self._listing.places())
        else:
            places = [publishers] if isinstance(publishers, str) else list(publishers)
        self._options = (chunk_bytes, stall, options)
        self._ask(places)
        self._holder = self._made  # of `_here`
        self._meeting = threading.Lock()
        self._closed = False
        self._boxes = boxes  # after it: attributes go in this order, and peers may read this memory until it ends
        self._staging: Staging | None = None
        self._in_place = False
        self._here: int | None = None  # whose bytes peers may read
        self._version: int | None = None
        _open.add(self)

    @property
    def place(self) -> str:
        """host:port, for other subscribers."""
        return str(self._made.place)

    @property
    def version(self) -> int | None:
        """What the tensors hold: the version that was committed last. None: not one."""
        return self._version

    def wait_version(self, above: int | None = None, timeout: float | None = None) -> int:
        """The newest version that somebody offers, once it is more than ``above``. TimedOut."""
        if self._listing is None:
            return int(self._made.wait_version(above, timeout))
        end = None if timeout is None else time.monotonic() + timeout
        pause = 1.0  # between two looks into the directory, in seconds
        while True:
            self._meet(self._listing, above)
            left = pause if end is None else min(pause, max(end - time.monotonic(), 0.0))
            try:
                return int(self._made.wait_version(above, left))
            except TimeoutError:
                if end is not None and time.monotonic() >= end:
                    raise
            pause = min(2 * pause, 8.0)

    def _ask(self, places: list[str]) -> None:
        chunk_bytes, stall, options = self._options
        self._made = _p2p.WeightsSubscriber(places, chunk_bytes, stall, **options)
        self._asked = set(places)

    def _meet(self, listing: Listing, above: int | None) -> None:
        """Asks those, too, who are listed by now and may have such a version."""
        with self._meeting:
            places = listing.known_places()
            places.pop(str(self._holder.place), None)
            new = [
                place for place, versions in places.items()
                if place not in self._asked and (not versions or above is None or max(versions) > above)
            ]  # fmt: skip
            if new and not self._closed:
                self._ask(list(places))

    def stage(
        self,
        version: int,
        *,
        in_place: bool = False,
        timeout: float | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> Progress:
        """Receives a version beside the tensors, or with ``in_place`` into them; waits until it is offered.

        Beside those of a GPU is on that GPU. First this waits for the GPUs' current streams: they may use the memory.

        When it returns, all bytes have come and hash to what the publisher has. ``progress`` is called several
        times a second. InvalidArgument: names, shapes or types do not meet, or two publishers offer the
        version; PeerGone: nobody is left who has what is missing; TimedOut. Then the tensors are what they
        were, or, in place, of no version.
        """
        if in_place:
            for box in self._boxes:
                box.require_in_place()
        if self._listing is not None:
            begun = time.monotonic()
            with contextlib.suppress(TimeoutError):  # stage() says what was waited for
                self.wait_version(version - 1 if version else None, timeout)
            timeout = None if timeout is None else max(begun + timeout - time.monotonic(), 0.0)
        made = self._made
        replaces = self._here not in (None, version) and self._in_place == in_place and self._holder is made
        if not replaces:
            self._take_back()
        if not in_place and self._staging is None:
            self._staging = Staging(self._boxes)
        if in_place:
            self._version = None
        staged = self._boxes if in_place or self._staging is None else self._staging.boxes
        wait_for_gpus(staged)
        wanted = manifest_of(staged)
        tell = None if progress is None else lambda row: progress(Progress(*row))
        try:
            row = made.stage(version, wanted, in_place or replaces, timeout, tell)
        except BaseException:
            self._take_back()
            if self._listing is not None:
                self._listing.withdraw()  # there is no version here
            raise
        self._holder, self._here, self._in_place = made, version, in_place
        if self._listing is not None:
            with contextlib.suppress(DirectoryError):  # it is down: nobody takes from this one who does not know it
                self._listing.put(str(made.place), [version])
        return Progress(*row)

    def commit(self) -> int:
        """Makes the staged version that of the tensors: a local copy, or none in place. NotFound: none is staged.

        On GPUs the copy is of the current stream, and done when this returns. Other streams must not use the
        tensors meanwhile. Where a signal interrupts the copy the tensors are of no version; another call ends it.
        """
        try:
            version = int(self._holder.commit())
        except NotFound:
            begun = self._holder.committed()
            if begun is None or begun == self._version:
                raise
            version = int(begun)  # by a call that was interrupted
        self._version = None
        if not self._in_place and self._staging is not None:
            self._staging.copy_to(self._boxes)
        self._version = version
        return version

    def receive_into(self, tensors: Tensors) -> None:
        """From now on versions come into these. Peers do not read the others any more when it returns."""
        boxes = boxes_of(tensors, writable=True)
        self._take_back()
        self._boxes, self._staging, self._version = boxes, None, None

    def _take_back(self) -> None:
        """Ends what peers may read of the memory that the next version takes."""
        if self._here is not None:
            with contextlib.suppress(LookupError, RuntimeError):
                self._holder.drop(self._here)
            self._here, self._holder = None, self._made

    def close(self) -> None:
        """Ends it; what was committed stays. May be repeated."""
        with self._meeting:
            self._closed = True
        if self._listing is not None:
            self._listing.withdraw()
        self._holder.close()
        self._made.close()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


