# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The transfer engine: register memory, connect, move bytes.

Calls that move bytes answer a bool, or (ok, value); ``last_error()`` says why one was False. Wrong arguments
raise ``RuntimeError`` (always one of the classes of this module). Pointers are integers
(``tensor.data_ptr()``, ``array.ctypes.data``), sizes are bytes. docs/python.md is the guide.
"""

import asyncio
import atexit
import contextlib
import os
import weakref
from collections.abc import Generator
from typing import Any

from uccl import _p2p
from uccl._errors import (
    Cancelled,
    DataMismatch,
    Error,
    InvalidArgument,
    MessageTooLong,
    NotFound,
    OutOfRange,
    PeerGone,
    PermissionDenied,
    ProtocolError,
    SystemFailure,
    TimedOut,
    Unavailable,
    from_code,
)
from uccl._p2p import FloatType, SharedBuffer, Strides, XferDesc, XferHandle, get_oob_ip, last_error

kUndefined = FloatType.kUndefined
kFloat16 = FloatType.kFloat16
kBFloat16 = FloatType.kBFloat16
kFloat32 = FloatType.kFloat32
kFloat8E4M3FN = FloatType.kFloat8E4M3FN
kFloat8E5M2 = FloatType.kFloat8E5M2

__all__ = [
    "Cancelled",
    "DataMismatch",
    "Endpoint",
    "Error",
    "FloatType",
    "InvalidArgument",
    "MessageTooLong",
    "NotFound",
    "OutOfRange",
    "PeerGone",
    "PermissionDenied",
    "ProtocolError",
    "SharedBuffer",
    "Strides",
    "SystemFailure",
    "TimedOut",
    "Unavailable",
    "XferDesc",
    "XferHandle",
    "get_oob_ip",
    "kBFloat16",
    "kFloat16",
    "kFloat32",
    "kFloat8E4M3FN",
    "kFloat8E5M2",
    "kUndefined",
    "last_error",
]


class _LoopWatch:
    """The transfers that coroutines of one event loop wait for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._completions = _p2p._Completions()
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        # The loop keeps the callback: a strong reference to self would keep both for ever.
        reference = weakref.ref(self)
        descriptor = self._completions.fileno()

        def drain() -> None:
            watch = reference()
            if watch is not None:
                watch._drain()

        loop.add_reader(descriptor, drain)
        self._loop = weakref.ref(loop)

    def _drain(self) -> None:
        for transfer_id in self._completions.take():
            for future in self._waiting.pop(transfer_id, ()):
                if not future.done():
                    future.set_result(None)

    def future(self, endpoint: "Endpoint", transfer_id: int) -> "asyncio.Future[None]":
        future = asyncio.get_running_loop().create_future()
        known = transfer_id in self._waiting
        self._waiting.setdefault(transfer_id, []).append(future)
        if not known:
            try:
                self._completions.watch(endpoint, transfer_id)
            except BaseException:
                self._waiting.pop(transfer_id, None)
                raise
        return future

    def again(self, transfer_id: int) -> "asyncio.Future[None]":
        """One more for a transfer that future() was called for: its id is known here until it is done."""
        future = asyncio.get_running_loop().create_future()
        if transfer_id in self._waiting:
            self._waiting[transfer_id].append(future)
        else:
            future.set_result(None)
        return future

    def forget(self, transfer_id: int, future: "asyncio.Future[None]") -> None:
        """For a coroutine that waits no longer."""
        waiting = self._waiting.get(transfer_id)
        if waiting and future in waiting:
            waiting.remove(future)

    def __del__(self) -> None:
        loop = self._loop() if hasattr(self, "_loop") else None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._completions.fileno())


class Endpoint(_p2p.Endpoint):
    """All that this process needs to move bytes to and from others; see the methods.

    ``Endpoint(local_gpu_idx, num_cpus)``, ``Endpoint(local_gpu_idx)`` or ``Endpoint()``. No GPU is needed and
    the index may be any number. Keyword options override the environment (``transports=["tcp"]``). Safe to
    use from any number of threads; not usable in a child made by fork(). Also a context manager, for ``with`` and
    ``async with``; uccl.aio has the same calls as coroutines.
    """

    def __enter__(self) -> "Endpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.close))

    def _watch(self) -> _LoopWatch:
        # One a loop and endpoint: ids are the endpoint's.
        watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch]
        watches = self.__dict__.setdefault("_watches", weakref.WeakKeyDictionary())
        loop = asyncio.get_running_loop()
        watch = watches.get(loop)
        if watch is None:
            watch = watches[loop] = _LoopWatch(loop)
        return watch

    async def wait_async(self, transfer_id: int, timeout: float | None = None) -> int:
        """Waits in a coroutine until the transfer is done and returns its bytes.

        Raises the error of a failed transfer, and TimedOut if ``timeout`` (seconds) passes first. A coroutine
        that is cancelled cancels the transfer and is through when its memory is free again.
        """
        watch = self._watch()
        future = watch.future(self, transfer_id)
        try:
            if timeout is None:
                await future
            else:
                await asyncio.wait([future], timeout=timeout)
        except asyncio.CancelledError:
            with contextlib.suppress(NotFound):  # the endpoint is being closed, which ends the transfer, too
                self.cancel(transfer_id)
            while not (rest := watch.again(transfer_id)).done():
                with contextlib.suppress(asyncio.CancelledError):  # once more: the memory is in use all the same
                    await rest
            with contextlib.suppress(NotFound):
                self.poll_async(transfer_id)  # its outcome is told: nothing is kept for it
            raise
        if not future.done():
            watch.forget(transfer_id, future)
            raise TimedOut(f"transfer {transfer_id} was not done within {timeout} s")
        return self.wait(transfer_id)

    def transfer_future(self, started: tuple[bool, int]) -> "Awaitable":
        """Makes the result of an ``*_async`` call awaitable: ``await ep.transfer_future(ep.write_async(...))``."""
        return Awaitable(self, started)


class Awaitable:
    """A started transfer that can be awaited (any number of times) for its bytes."""

    def __init__(self, endpoint: Endpoint, started: tuple[bool, int]) -> None:
        ok, self.transfer_id = started
        self._endpoint = endpoint
        self._failure = None if ok else _p2p._last_failure()

    def __await__(self) -> Generator[Any, None, int]:
        if self._failure is not None:
            raise from_code(*self._failure)
        return self._endpoint.wait_async(self.transfer_id).__await__()


_naming = os.environ.get("UCCL_P2P_GPU_NAMES", "index")
if _naming not in ("index", "bdf"):
    raise InvalidArgument(f"UCCL_P2P_GPU_NAMES is {_naming!r}, not 'index' or 'bdf'")
_p2p._name_gpus_by_bdf(_naming == "bdf")

# Transfers under way touch memory that the interpreter is about to free.
atexit.register(_p2p._close_all)
