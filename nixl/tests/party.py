# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A NIXL agent with the backend TCPX and some memory, as the tests use it, in either process."""

from __future__ import annotations

import os
import socket
import stat
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from nixl_cu13 import _bindings as bindings
from nixl_cu13._api import nixl_agent, nixl_agent_config

LIMIT = 30.0  # seconds; bound on whatever must succeed, because a loaded machine is no failure
Pieces = Sequence[tuple[int, int]]  # address, bytes


def wait_until(true: Callable[[], Any], seconds: float = LIMIT) -> Any:
    """Asks until the answer is true; the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := true()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return answer


class Party:
    """One agent. Memory goes by name."""

    def __init__(self, name: str, parameters: dict[str, str] | None = None, **config: Any) -> None:
        self.name = name
        self.agent = nixl_agent(name, nixl_agent_config(backends=[], **config))
        self.agent.create_backend("TCPX", {"listen_address": "127.0.0.1", "workers": "2"} | (parameters or {}))
        self.arrays: dict[str, np.ndarray] = {}
        self.registered: dict[str, Any] = {}
        self.came: list[tuple[str, bytes]] = []

    def memory(self, name: str, size: int, value: int = 0, text: str = "") -> int:
        """Registers ``size`` bytes of one value; the address."""
        self.arrays[name] = array = np.full(size, value, np.uint8)
        self.registered[name] = self.agent.register_memory([(array.ctypes.data, size, 0, text)], "DRAM")
        return array.ctypes.data

    def many(self, name: str, count: int, size: int) -> int:
        """Registers so many ranges with gaps of ``size`` between them; the address of the first."""
        self.arrays[name] = array = np.zeros(2 * count * size, np.uint8)
        rows = [(array.ctypes.data + 2 * at * size, size, 0, "") for at in range(count)]
        self.registered[name] = self.agent.register_memory(rows, "DRAM")
        return array.ctypes.data

    def publish(self, *labels: str) -> None:
        """Gives NIXL's own metadata server (etcd) all, or of each named memory what it needs under its name as label."""
        if not labels:
            self.agent.send_local_metadata()
        for label in labels:
            self.agent.send_partial_agent_metadata(self.registered[label], True, ["TCPX"], label=label)

    def forget(self, name: str) -> None:
        """Deregisters; the array stays."""
        self.agent.deregister_memory(self.registered.pop(name))

    def register(self, name: str, times: int = 1) -> None:
        """Registers known memory once more, so many times in one list."""
        array = self.arrays[name]
        rows = [(array.ctypes.data, array.size, 0, "")] * times
        self.registered[name] = self.agent.register_memory(rows, "DRAM")

    def give_back(self, name: str, times: int) -> None:
        """Deregisters, so many times in one list."""
        array = self.arrays[name]
        rows = [(array.ctypes.data, array.size, 0, "")] * times
        self.agent.deregister_memory(self.agent.get_reg_descs(rows, "DRAM"))

    def register_ranges(self, pieces: Pieces) -> None:
        self.agent.register_memory([(address, size, 0, "") for address, size in pieces], "DRAM")

    def fill(self, name: str, seed: int) -> None:
        array = self.arrays[name]
        array[:] = np.random.default_rng(seed).integers(0, 256, array.size, np.uint8)

    def differs(self, name: str, seed: int) -> int:
        """How many bytes are not what ``fill`` with this seed makes."""
        array = self.arrays[name]
        return int(np.count_nonzero(array != np.random.default_rng(seed).integers(0, 256, array.size, np.uint8)))

    def set(self, name: str, value: int) -> None:
        self.arrays[name][:] = value

    def checksum(self, name: str, start: int = 0) -> int:
        return zlib.crc32(self.arrays[name][start:])

    def last_byte(self, name: str) -> int:
        return int(self.arrays[name][-1])

    def contents(self, name: str) -> bytes:
        return self.arrays[name].tobytes()

    def metadata(self) -> bytes:
        return self.agent.get_agent_metadata()

    def partial(self, name: str, conn_info: bool = True) -> bytes:
        return self.agent.get_partial_agent_metadata(self.registered[name], conn_info, ["TCPX"])

    def add(self, metadata: bytes) -> str:
        added = self.agent.add_remote_agent(metadata)
        return added.decode() if isinstance(added, bytes) else added

    def descs(self, pieces: Pieces) -> Any:
        table = np.array([(address, size, 0) for address, size in pieces], np.uint64)
        return self.agent.get_xfer_descs(table, "DRAM")

    def request(self, op: str, peer: str, local: Pieces, remote: Pieces, note: bytes = b"") -> Any:
        return self.agent.initialize_xfer(op, self.descs(local), self.descs(remote), peer, note)

    def outcome(self, handle: Any, seconds: float = LIMIT) -> str:
        """Waits for the end of what was posted: DONE, PROC if that did not come, or the error's class."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                state = self.agent.check_xfer_state(handle)
            except Exception as error:  # noqa: BLE001 - the class is the outcome
                return type(error).__name__
            if state != "PROC" or time.monotonic() > deadline:
                return state
            time.sleep(0.0005)

    def run(self, handle: Any, note: bytes = b"") -> str:
        """Posts and waits."""
        try:
            self.agent.transfer(handle, note)
        except Exception as error:  # noqa: BLE001
            return type(error).__name__
        return self.outcome(handle)

    def move(self, op: str, peer: str, local: Pieces, remote: Pieces, note: bytes = b"") -> str:
        handle = self.request(op, peer, local, remote, note)
        state = self.run(handle, note)
        self.agent.release_xfer_handle(handle)
        return state

    def take(self) -> list[tuple[str, bytes]]:
        """All notifications so far, with their senders."""
        for sender, messages in self.agent.get_new_notifs().items():
            name = sender.decode() if isinstance(sender, bytes) else sender
            self.came += [(name, message) for message in messages]
        return self.came

    def notes(self, count: int, seconds: float = LIMIT) -> list[tuple[str, bytes]]:
        """Waits for so many; what came, which is then forgotten."""
        wait_until(lambda: len(self.take()) >= count, seconds)
        came, self.came = self.came, []
        return came

    def note_sizes(self, count: int) -> list[tuple[str, int, int]]:
        """As ``notes``, for those too long to be handed around: sender, length and sum of the bytes."""
        return [(who, len(text), int(np.frombuffer(text, np.uint8).sum())) for who, text in self.notes(count)]

    def notify(self, peer: str, message: bytes) -> None:
        self.agent.send_notif(peer, message)

    def remove(self, peer: str) -> None:
        self.agent.remove_remote_agent(peer)

    def pid(self) -> int:
        return os.getpid()


def shut_connections() -> int:
    """Breaks every TCP connection of this process, as a fault of the network would; how many."""
    broken = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    copy.getpeername()
                    copy.shutdown(socket.SHUT_RDWR)
                    broken += 1
        except OSError:
            continue  # closed meanwhile, or a listener
    return broken


GONE = bindings.nixlRemoteDisconnectError
