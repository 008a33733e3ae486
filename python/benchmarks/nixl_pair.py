# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One side of benchmark_nixl.py: an agent, its memory in a layout, and transfers to the other side."""

from __future__ import annotations

import argparse
import importlib
import time
from typing import Any

import numpy as np
from nixl_workloads import Layout

BACKENDS = {"tcpx": "TCPX", "uccl": "UCCL", "ucx": "UCX", "mooncake": "Mooncake"}
_SEED = 20


def _nixl() -> Any:
    """The API module of whichever NIXL is installed."""
    for name in ("nixl._api", "nixl_cu13._api", "nixl_cu12._api"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("no NIXL is installed (pip install nixl)")


def open_agent(name: str, backend: str) -> Any:
    """An agent with this backend alone; RuntimeError if NIXL cannot have it."""
    api = _nixl()
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[BACKENDS[backend]]))
    if BACKENDS[backend] not in agent.backends:
        raise RuntimeError(f"NIXL has no backend {BACKENDS[backend]} here (for tcpx: python -m uccl.nixl install)")
    return agent


class _HostMemory:
    def __init__(self, layout: Layout) -> None:
        self.array = np.zeros((layout.regions, layout.blocks, layout.block), np.uint8)
        self.address = self.array.ctypes.data
        self.kind, self.device = "DRAM", 0

    def fill(self, data: np.ndarray) -> None:
        self.array[:] = data

    def read(self) -> np.ndarray:
        return self.array


class _DeviceMemory:
    def __init__(self, layout: Layout, device: int) -> None:
        import torch

        self._torch = torch
        shape = (layout.regions, layout.blocks, layout.block)
        self._tensor = torch.zeros(shape, dtype=torch.uint8, device=f"cuda:{device}")
        self.address = self._tensor.data_ptr()
        self.kind, self.device = "VRAM", device

    def fill(self, data: np.ndarray) -> None:
        self._tensor.copy_(self._torch.from_numpy(data))
        self._torch.cuda.synchronize(self.device)

    def read(self) -> np.ndarray:
        return self._tensor.cpu().numpy()


def _source_data(layout: Layout) -> np.ndarray:
    """The same on both sides, so that either can check what it got."""
    words = np.random.default_rng(_SEED).integers(0, 1 << 63, -(-layout.bytes // 8), np.uint64)
    return words.view(np.uint8)[: layout.bytes].reshape(layout.regions, layout.blocks, layout.block)


class Side:
    """Memory in a layout, and one transfer of all its blocks at a time."""

    def __init__(self, agent: Any, arguments: argparse.Namespace, layout: Layout, there: bool) -> None:
        self.agent, self.layout, self.there = agent, layout, there
        self._arguments = arguments
        self.always_new = False
        self.make_seconds: list[float] = []
        self.post_seconds: list[float] = []
        self.wait_seconds: list[float] = []
        self.prepare_seconds = 0.0
        self._memory = self._allocate()
        self._registered = [self._register(self._memory)]
        self._own: Any = None
        self._handle: Any = None
        self._lists: list[Any] = []
        self._peer = ""

    def _allocate(self) -> Any:
        if self._arguments.device == "gpu":
            return _DeviceMemory(self.layout, self._arguments.local_gpu_idx or 0)
        return _HostMemory(self.layout)

    def _register(self, memory: Any) -> Any:
        each = self.layout.blocks * self.layout.block
        regions = [(memory.address + i * each, each, memory.device, "") for i in range(self.layout.regions)]
        return self.agent.register_memory(regions, memory.kind)

    def prepare_data(self, op: str, dual: bool) -> None:
        """Fills what is to be moved; with ``dual`` there is more memory for the server's own transfers."""
        self._op = op.upper()
        if (op == "write") != self.there:
            self._memory.fill(_source_data(self.layout))
        if dual:
            self._own = self._allocate()
            self._registered.append(self._register(self._own))
            if (op == "write") == self.there:
                self._own.fill(_source_data(self.layout))

    def describe(self) -> dict[str, Any]:
        """What the other side needs to know besides NIXL's metadata."""
        own = self._own.address if self._own is not None else 0
        return {"address": self._memory.address, "own": own, "device": self._memory.device, "kind": self._memory.kind}

    def _descs(self, address: int, device: int, kind: str, there: bool) -> Any:
        places = self.layout.table(there)[None, :] + np.arange(self.layout.regions)[:, None] * self.layout.blocks
        rows = np.empty((self.layout.count, 3), np.uint64)
        rows[:, 0] = address + places.reshape(-1).astype(np.uint64) * np.uint64(self.layout.block)
        rows[:, 1] = self.layout.block
        rows[:, 2] = device
        return self.agent.get_xfer_descs(rows, kind)

    def meet(self, metadata: bytes, peer: dict[str, Any]) -> None:
        """Loads the other side; prepares lists of all blocks on the side that transfers."""
        name = self.agent.add_remote_agent(metadata)
        self._peer = name.decode() if isinstance(name, bytes) else name
        self._prepare(self._memory, peer["address"], peer)

    def make_own_region(self, peer: dict[str, Any]) -> None:
        """For --dual on the server: the same work the other way, between the further memory of both sides."""
        self._release()
        self._prepare(self._own, peer["own"], peer)

    def _prepare(self, memory: Any, address: int, peer: dict[str, Any]) -> None:
        mine = self._descs(memory.address, memory.device, memory.kind, self.there)
        theirs = self._descs(address, peer["device"], peer["kind"], not self.there)
        start = time.perf_counter()
        self._lists = [self.agent.prep_xfer_dlist("", mine), self.agent.prep_xfer_dlist(self._peer, theirs)]
        self.prepare_seconds = time.perf_counter() - start
        self._indices = np.arange(self.layout.count, dtype=np.int32)

    def transfer(self) -> None:
        """Makes a request if need be, posts it, and polls until it is done."""
        if self._handle is None:
            start = time.perf_counter()
            mine, theirs = self._lists
            self._handle = self.agent.make_prepped_xfer(self._op, mine, self._indices, theirs, self._indices)
            self.make_seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        state = self.agent.transfer(self._handle)
        posted = time.perf_counter()
        self.post_seconds.append(posted - start)
        while state == "PROC":
            state = self.agent.check_xfer_state(self._handle)
        self.wait_seconds.append(time.perf_counter() - posted)
        if state != "DONE":
            raise RuntimeError(f"a transfer ended as {state}")
        if self.always_new:
            self.agent.release_xfer_handle(self._handle)
            self._handle = None

    def wrong_bytes(self) -> int:
        """Bytes that were moved here and are not those of the other side's blocks."""
        moved = self._memory if (self._op == "WRITE") == self.there else self._own
        if moved is None:
            return 0
        expected = np.empty_like(source := _source_data(self.layout))
        expected[:, self.layout.table(self.there)] = source[:, self.layout.table(not self.there)]
        return int(np.count_nonzero(moved.read() != expected))

    def _release(self) -> None:
        if self._handle is not None:
            self.agent.release_xfer_handle(self._handle)
            self._handle = None
        for prepared in self._lists:
            self.agent.release_dlist_handle(prepared)
        self._lists = []

    def close(self) -> None:
        self._release()
        if self._peer:
            self.agent.remove_remote_agent(self._peer)
        for registered in self._registered:
            self.agent.deregister_memory(registered)
