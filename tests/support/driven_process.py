# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A second process, driven from the test: an object there, its methods called from here."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from typing import Any


def _serve(pipe: Any, make: Any) -> None:
    # The terminal's Ctrl-C is the test runner's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = make()
    while True:
        try:
            number, method, arguments, keywords = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((number, True, getattr(made, method)(*arguments, **keywords)))
        except Exception:  # noqa: BLE001 - the test shows it
            pipe.send((number, False, traceback.format_exc()))


class DrivenProcess:
    """The handle on it. ``driven.method(...)`` runs there, on what ``make`` makes; ``begin`` and ``result`` in halves.

    An answer is waited for ``seconds`` at most.
    """

    def __init__(self, make: Any, seconds: float, context: Any = None) -> None:
        context = context or multiprocessing.get_context("spawn")
        self._begun = self._answered = 0
        self._seconds = seconds
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def idle(self) -> bool:
        """Whether every call was answered: a test that failed may have left one waiting."""
        return self.process.is_alive() and self._begun == self._answered

    def begin(self, method: str, *arguments: Any, **keywords: Any) -> None:
        self._begun += 1
        self._pipe.send((self._begun, method, arguments, keywords))

    def result(self) -> Any:
        """The answer to the latest call."""
        assert self._pipe.poll(self._seconds), "the other process does not answer"
        self._answered, ok, value = self._pipe.recv()
        assert self._answered == self._begun
        assert ok, value
        return value

    def run(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        self.begin(method, *arguments, **keywords)
        return self.result()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **keywords: self.run(name, *arguments, **keywords)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(self._seconds)

    def stop(self) -> None:
        self._pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.kill()
