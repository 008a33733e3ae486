# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A second process with agents of its own, driven from the test."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from typing import Any

import party

# Processes come from a server that has imported NIXL, which takes seconds in the versions that import torch.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["party"])
_PATIENCE = 2 * party.LIMIT


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


def _serve(pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the test runner's
    agents = Agents()
    while True:
        try:
            method, arguments, keywords = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(agents, method)(*arguments, **keywords)))
        except Exception:  # noqa: BLE001 - the test shows it
            pipe.send((False, traceback.format_exc()))


class Remote:
    """An agent in the other process: its methods are those of ``party.Party``."""

    def __init__(self, other: Other, name: str) -> None:
        self.other = other
        self.name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return lambda *arguments, **keywords: self.other.run("of", self.name, method, *arguments, **keywords)


class Other:
    """The second process. ``run`` waits for the answer; ``begin`` and ``result`` are its halves."""

    def __init__(self) -> None:
        self._pipe, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.waiting = False

    def begin(self, method: str, *arguments: Any, **keywords: Any) -> None:
        self._pipe.send((method, arguments, keywords))
        self.waiting = True

    def result(self) -> Any:
        assert self._pipe.poll(_PATIENCE), "the other process does not answer"
        ok, value = self._pipe.recv()
        self.waiting = False
        assert ok, value
        return value

    def run(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        self.begin(method, *arguments, **keywords)
        return self.result()

    def open(self, name: str, *arguments: Any, **keywords: Any) -> Remote:
        self.run("open", name, *arguments, **keywords)
        return Remote(self, name)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(party.LIMIT)

    def stop(self) -> None:
        self._pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.kill()
