# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A second process with agents of its own, driven from the test."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import party
from driven_process import DrivenProcess

# Processes come from a server that has imported NIXL, which takes seconds in the versions that import torch.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["party"])


class Agents:
    """What the other process can be told to do."""

    def __init__(self) -> None:
        self._parties: dict[str, party.Party] = {}

    def open(self, name: str, *arguments: Any, **keywords: Any) -> None:
        self._parties[name] = party.Party(name, *arguments, **keywords)

    def close(self) -> None:
        self._parties.clear()

    def of(self, name: str, method: str, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self._parties[name], method)(*arguments, **keywords)

    def shut_connections(self) -> int:
        return party.shut_connections()

    def set_variable(self, name: str, value: str) -> None:
        os.environ[name] = value

    def pid(self) -> int:
        return os.getpid()


class Remote:
    """An agent in the other process: its methods are those of ``party.Party``."""

    def __init__(self, other: Other, name: str) -> None:
        self.other = other
        self.name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments, **keywords: self.other.run("of", self.name, method, *arguments, **keywords)


class Other(DrivenProcess):
    """The second process."""

    def __init__(self) -> None:
        super().__init__(Agents, 2 * party.LIMIT, _PROCESSES)

    def open(self, name: str, *arguments: Any, **keywords: Any) -> Remote:
        self.run("open", name, *arguments, **keywords)
        return Remote(self, name)
