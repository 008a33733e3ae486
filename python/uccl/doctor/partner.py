# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A second process of this machine, which has endpoints and memory as the first one asks."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from uccl import p2p
from uccl.doctor.memory import memories

_PATIENCE = 20.0


def _other_process(pipe: Connection) -> None:
    with memories(near=False) as mine, contextlib.suppress(EOFError):
        pipe.send(mine.by_kind["host"].address)
        while pipe.poll(_PATIENCE * 3):
            options = pipe.recv()
            try:
                with p2p.Endpoint(1, port=0, **options) as endpoint:
                    pipe.send((endpoint.get_metadata(), mine.advertised(endpoint)))
                    pipe.recv()  # it is through
            except (p2p.Error, OSError) as error:
                pipe.send(str(error))


class Partner:
    """The second process; nothing of it outlives the ``with``."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_other_process, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.address: int = self._answer()  # of its host memory
        except p2p.Error:
            self.__exit__()
            raise

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv() if self._pipe.poll(_PATIENCE) else "the second process says nothing"
        except (EOFError, OSError):
            answer = "the second process ended"
        if isinstance(answer, str):
            raise p2p.Error(answer)
        return answer

    @contextlib.contextmanager
    def endpoint(self, **options: Any) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """An endpoint over there: its metadata, and leave to reach its memory by kind."""
        with contextlib.suppress(OSError):  # then it says nothing, either
            self._pipe.send(options)
        answer = self._answer()
        try:
            yield answer
        finally:
            with contextlib.suppress(OSError):
                self._pipe.send("through")

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self.process.join(1)
        self.process.kill()
        self.process.join(_PATIENCE)
