# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Registered memory by address: this engine's, and the list of it that peers read from registered memory.

Reading the list costs its owner nothing. A number in its head is odd while it changes: who finds the same even number
before and after has read it whole.
"""

import mmap
import struct
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from uccl import p2p

Numbers = NDArray[np.uint64]
Entries = NDArray[np.void]  # of the type ENTRY: disjoint ranges of memory, by address

INVALID, UNKNOWN, OVERLAPS = -1, -3, -7  # as Mooncake numbers its errors

HEAD = struct.Struct("<8sQQ")  # what it is, the number of its state, how many entries follow
MAGIC = b"uccl-mc1"
ENTRY = np.dtype([("start", "<u8"), ("size", "<u8"), ("region", "<u8"), ("blob", "u1", (64,))])
MOST_REGIONS = 65536


class Refused(Exception):
    """Why a call answers a negative code."""

    def __init__(self, reason: str, code: int = INVALID) -> None:
        super().__init__(reason)
        self.code = code


def find(entries: Entries, addresses: Numbers, sizes: Numbers) -> Entries | str:
    """For each piece of memory the entry that it lies in (a copy); or which is the first that lies in none."""
    starts, lengths, inside = entries["start"], entries["size"], np.zeros(1, bool)
    if len(entries):
        rows = np.maximum(np.searchsorted(starts, addresses, side="right"), 1) - 1
        offsets = addresses - starts[rows]  # of one that begins before the first: beyond all sizes
        inside = (offsets <= lengths[rows]) & (sizes <= lengths[rows] - offsets)
        if inside.all():
            found: Entries = entries[rows]
            return found
    bad = int(np.argmin(inside))
    return f"{sizes[bad]} bytes at {int(addresses[bad]):#x}"


class Registry:
    """What is registered here. Any thread."""

    def __init__(self, endpoint: p2p.Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self.entries: Entries = np.zeros(0, ENTRY)  # replaced as a whole
        memory = mmap.mmap(-1, HEAD.size + MOST_REGIONS * ENTRY.itemsize)  # what is not used takes no memory
        self._list = np.frombuffer(memory, np.uint8)
        self._state = -1
        self._publish(self.entries)
        ok, region = endpoint.reg(self._list, read_only=True)
        ok, self.blob = endpoint.advertise(region, self._list) if ok else (False, b"")
        if not ok:
            raise Refused(f"register the list of regions: {p2p.last_error()}")

    def _publish(self, entries: Entries) -> None:
        self._state += 1
        HEAD.pack_into(self._list.data, 0, MAGIC, 2 * self._state + 1, 0)
        self._list[HEAD.size : HEAD.size + entries.nbytes] = entries.view(np.uint8)
        HEAD.pack_into(self._list.data, 0, MAGIC, 2 * self._state + 2, len(entries))
        self.entries = entries

    def add(self, addresses: Sequence[int], sizes: Sequence[int]) -> None:
        """Registers all of them, or none."""
        if len(addresses) != len(sizes):
            raise Refused(f"{len(addresses)} addresses and {len(sizes)} sizes")
        new = np.zeros(len(sizes), ENTRY)
        new["start"], new["size"] = addresses, sizes
        new.sort(order="start")
        if not (new["start"].all() and new["size"].all()):
            raise Refused("a range at address 0, or of no bytes")
        with self._lock:
            at = np.searchsorted(self.entries["start"], new["start"])
            starts, ends = (
                np.insert(self.entries["start"] + of, at, new["start"] + more)
                for of, more in ((0, 0), (self.entries["size"], new["size"]))
            )
            if (bad := ends[:-1] > starts[1:]).any():
                where = ", ".join(hex(start) for start in starts[int(np.argmax(bad)) :][:2])
                raise Refused(f"ranges overlap: those that begin at {where}", OVERLAPS)
            if len(starts) > MOST_REGIONS:
                raise Refused(f"more than {MOST_REGIONS} regions")
            ok, regions = self._endpoint.regv(new["start"].copy(), new["size"].copy())
            ok, blobs = (
                self._endpoint.advertisev(regions, new["start"].copy(), new["size"].copy()) if ok else (False, [])
            )
            if not ok:
                raise Refused(f"register {len(new)} ranges of {sum(sizes)} bytes: {p2p.last_error()}")
            new["region"] = regions
            new["blob"] = np.frombuffer(b"".join(blobs), np.uint8).reshape(-1, 64)
            self._publish(np.insert(self.entries, at, new))

    def remove(self, address: int) -> None:
        """Ends the registration that begins at an address, and waits for the transfers here that use it."""
        with self._lock:
            row = int(np.searchsorted(self.entries["start"], np.uint64(address)))
            if row == len(self.entries) or self.entries["start"][row] != address:
                raise Refused(f"no registration begins at {address:#x}", UNKNOWN)
            region = int(self.entries["region"][row])
            self._publish(np.delete(self.entries, row))
        if not self._endpoint.dereg(region):
            raise Refused(f"unregister {address:#x}: {p2p.last_error()}")

    def covering(self, addresses: Numbers, sizes: Numbers) -> Entries:
        """The entry that each piece lies in."""
        found = find(self.entries, addresses, sizes)
        if isinstance(found, str):
            raise Refused(f"{found} are not registered here")
        return found
