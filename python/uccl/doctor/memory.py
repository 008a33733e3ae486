# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Memory of this process that transfers are tried with, of each kind that it has."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import uccl
from uccl import p2p
from uccl.doctor.gpus import Driver

BYTES = 32 << 20
GPU_BYTES = 256 << 20  # what a GPU copies in less is over before a call from Python is


class Pages:
    """Host memory, written once, as long as this lives."""

    size = BYTES

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, BYTES)
        self._memory.write(b"\x01" * BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def close(self) -> None:
        """The pages go with the object: the address is lent out as long as it lives."""


class GpuPages:
    """Memory of one GPU, written once. RuntimeError where the driver gives none."""

    size = GPU_BYTES

    def __init__(self, driver: Driver, device: int) -> None:
        self.driver, self.device = driver, device
        self.address = driver.allocate(device, GPU_BYTES)

    def close(self) -> None:
        self.driver.free(self.device, self.address)


class Memories:
    """What this process has by kind, as routes() names the kinds, and why there is no memory of a GPU where one should
    be. Of two processes one is ``near``, so that they take two GPUs where there are two."""

    def __init__(self, near: bool) -> None:
        self.by_kind: dict[str, Pages | GpuPages] = {"host": Pages()}
        self.gpu: GpuPages | None = None
        self.missing = ""
        if not uccl.__cuda__:
            return
        try:
            driver = Driver()
            count = driver.count()
            if count:
                self.gpu = self.by_kind["cuda"] = GpuPages(driver, 0 if near or count == 1 else 1)
        except OSError:
            pass  # no driver, which is said elsewhere
        except RuntimeError as error:
            self.missing = str(error)

    def registered(self, endpoint: p2p.Endpoint) -> dict[str, int]:
        """Region numbers by kind."""
        return {kind: _registered(endpoint, pages) for kind, pages in self.by_kind.items()}

    def advertised(self, endpoint: p2p.Endpoint) -> dict[str, bytes]:
        """Leave to reach memory of each kind."""
        return {
            kind: endpoint.advertise(mr_id, self.by_kind[kind].address, self.by_kind[kind].size)[1]
            for kind, mr_id in self.registered(endpoint).items()
        }

    def close(self) -> None:
        for pages in self.by_kind.values():
            pages.close()


def _registered(endpoint: p2p.Endpoint, pages: Pages | GpuPages) -> int:
    ok, mr_id = endpoint.reg(pages.address, pages.size)
    if not ok:
        raise p2p.Error(p2p.last_error())
    return mr_id


@contextmanager
def memories(near: bool) -> Iterator[Memories]:
    made = Memories(near)
    try:
        yield made
    finally:
        made.close()
