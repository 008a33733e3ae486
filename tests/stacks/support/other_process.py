# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The second process of a script, and what the two tell each other. PYTHONPATH names this folder."""

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

_SECONDS = 600  # it has hung: starting takes minutes where others use the processors, too


def start(run: Callable[[Connection], None]) -> tuple[SpawnProcess, Connection]:
    """Another process that runs this function, and this side's end of the pipe to it."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=run, args=(there,), daemon=True)
    process.start()
    there.close()
    return process, here


def hear(pipe: Connection, during: str) -> Any:
    """What the other side says next; ends this process if that one has ended or hangs."""
    if not pipe.poll(_SECONDS):
        sys.exit(f"{during}: nothing from the other process within {_SECONDS} s")
    try:
        return pipe.recv()
    except EOFError:
        sys.exit(f"{during}: the other process has ended")


def finish(process: SpawnProcess) -> None:
    """Ends this process, well if the other one has ended well."""
    process.join(_SECONDS)
    sys.exit(0 if process.exitcode == 0 else f"the other process ended with {process.exitcode}")
