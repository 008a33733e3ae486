# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One side of what test_mooncake.py does: an engine, and memory by name. Runs in the test and in another process."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from uccl.mooncake import TransferEngine


def pattern(size: int, seed: int) -> np.ndarray:
    """Bytes that differ from place to place and from seed to seed."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


class Party:
    def __init__(self) -> None:
        self.engine = TransferEngine()
        self.arrays: dict[str, np.ndarray] = {}

    def open(self, **variables: str) -> str:
        """A new engine, with these variables; its name."""
        os.environ.update(variables)
        self.engine = TransferEngine()
        self.arrays.clear()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0") == 0
        for name in variables:
            del os.environ[name]
        return f"127.0.0.1:{self.engine.get_rpc_port()}"

    def memory(self, name: str, size: int, seed: int) -> int:
        """The address of patterned memory, registered."""
        self.arrays[name] = pattern(size, seed)
        address = self.address_of(name)
        assert self.engine.register_memory(address, size) == 0
        return address

    def address_of(self, name: str) -> int:
        return int(self.arrays[name].ctypes.data)

    def contents(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the engine."""
        return getattr(self.engine, method)(*arguments)

    def again(self, name: str, seed: int) -> int:
        """Other bytes in the same memory, which is registered anew."""
        address = self.address_of(name)
        assert self.engine.unregister_memory(address) == 0
        self.arrays[name][:] = pattern(len(self.arrays[name]), seed)
        return self.engine.register_memory(address, len(self.arrays[name]))

    def many(self, count: int, size: int) -> int:
        """Registers every other piece of memory, one call for each ten; the address of the first."""
        self.arrays["many"] = pattern(2 * count * size, 7)
        first = self.address_of("many")
        addresses = [first + 2 * at * size for at in range(count)]
        for at in range(0, count, 10):
            ten = addresses[at : at + 10]
            assert self.engine.batch_register_memory(ten, [size] * len(ten)) == 0
        return first

    def write_often(self, peer: str, here: int, there: int, size: int, times: int) -> list[int]:
        return [self.engine.transfer_sync_write(peer, here, there, size) for _ in range(times)]

    def pid(self) -> int:
        return os.getpid()
