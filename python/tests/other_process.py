# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A second process with an endpoint of its own, driven from the test."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from driven_process import DrivenProcess

from uccl import p2p

# scripts/rdma_vm.sh says that everything takes some ten times longer there.
REPLY_SECONDS = 180.0 if os.environ.get("P2P_SLOW_MACHINE") else 30.0


def _state_at(path: Path) -> str | None:
    try:
        return path.read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has just ended
        return None


def until_asleep(process: int, thread: int | None = None) -> None:
    """Returns once a thread (by default the first) of a process waits in the kernel, or has ended."""
    deadline = time.monotonic() + REPLY_SECONDS
    path = Path(f"/proc/{process}/task/{thread or process}/stat")
    while _state_at(path) not in ("S", None):
        assert time.monotonic() < deadline, "the thread never waits"
        time.sleep(0.001)


def gpu_tensor(size: int, device: int, value: int = 0) -> Any:
    """``size`` bytes on a GPU, written when this returns."""
    import torch

    tensor = torch.full((size,), value, dtype=torch.uint8, device=f"cuda:{device}")
    torch.cuda.synchronize(device)
    return tensor


class Worker:
    """What the other process can be told to do. Memory goes by name."""

    def __init__(self) -> None:
        self.ep: p2p.Endpoint | None = None
        self.arrays: dict[str, Any] = {}  # NumPy's or torch's
        self.regions: dict[str, int] = {}

    def open(self, gpu: int = 1, **options: Any) -> bytes:
        """A new endpoint in place of the last; its metadata."""
        if self.ep is not None:
            self.ep.close(0)
        self.arrays.clear()
        self.regions.clear()
        self.ep = p2p.Endpoint(gpu, 2, **options)
        return self.ep.get_metadata()

    def call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """A method of the endpoint."""
        return getattr(self.ep, method)(*arguments, **keywords)

    def call_on_view(
        self, method: str, name: str, kind: str, shape: Sequence[int], strides: Sequence[int], *before: Any
    ) -> Any:
        """The same with a view of named memory as its last argument."""
        return self.call(method, *before, np.ndarray(shape, kind, self.arrays[name], 0, strides))

    def last_error(self) -> str:
        return p2p.last_error()

    def memory(self, name: str, size: int, value: int = 0) -> tuple[int, int]:
        """Registers ``size`` bytes: (mr_id, address)."""
        self.arrays[name] = np.full(size, value, np.uint8)
        ok, self.regions[name] = self.ep.reg(self.arrays[name].ctypes.data, size)
        assert ok, p2p.last_error()
        return self.regions[name], self.arrays[name].ctypes.data

    def gpu_memory(self, name: str, size: int, device: int, value: int = 0) -> tuple[int, int]:
        """The same on a GPU."""
        self.arrays[name] = gpu_tensor(size, device, value)
        ok, self.regions[name] = self.ep.reg(self.arrays[name].data_ptr(), size)
        assert ok, p2p.last_error()
        return self.regions[name], self.arrays[name].data_ptr()

    def address_of(self, name: str) -> int:
        array = self.arrays[name]
        return array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()

    def advertised(self, name: str) -> bytes:
        ok, blob = self.ep.advertise(0, self.regions[name], self.address_of(name), self.arrays[name].nbytes)
        assert ok, p2p.last_error()
        return blob

    def described(self, names: list[str]) -> bytes:
        """XferDescs of named memory, as they travel."""
        return self.ep.get_serialized_descs(self.ep.register_memory([self.arrays[name] for name in names]))

    def regions_of(self, name: str) -> int:
        return self.regions[name]

    def fill(self, name: str, data: bytes) -> None:
        self.arrays[name][: len(data)] = np.frombuffer(data, np.uint8)

    def contents(self, name: str) -> bytes:
        array = self.arrays[name]
        return array.tobytes() if isinstance(array, np.ndarray) else array.cpu().numpy().tobytes()

    def pid(self) -> int:
        return os.getpid()


class Other(DrivenProcess):
    """The handle on a second process: ``other.memory(...)`` and so on run there."""

    def __init__(self, make: Any = Worker) -> None:
        super().__init__(make, REPLY_SECONDS)


class Pair:
    """An endpoint here, one in the other process, and a connection from here to there."""

    def __init__(self, other: Other, **options: Any) -> None:
        self.other = other
        self.metadata = other.open(**options)
        self.ep = p2p.Endpoint(0, 2, **options)
        self.arrays: list[np.ndarray] = []
        address, port, gpu = p2p.Endpoint.parse_metadata(self.metadata)
        other.begin("call", "accept", timeout=REPLY_SECONDS * 2 / 3)
        ok, self.conn = self.ep.connect(address, gpu, port)
        assert ok, p2p.last_error()
        ok, _, _, self.their_conn = other.result()
        assert ok

    def memory(self, size: int, value: int = 0) -> tuple[np.ndarray, int, int]:
        """Registers ``size`` bytes here: (array, mr_id, address)."""
        array = np.full(size, value, np.uint8)
        self.arrays.append(array)  # lives as long as the endpoint that knows it
        ok, mr_id = self.ep.reg(array.ctypes.data, size)
        assert ok, p2p.last_error()
        return array, mr_id, array.ctypes.data

    def close(self) -> None:
        self.ep.close(1)
