# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.p2p for coroutines: what waits is awaited, and what fails raises.

    async with aio.Endpoint() as ep:
        connection = await ep.connect(address, gpu, port)
        await ep.write(connection, region, pointer, size, blob)

Cancelling a coroutine cancels what it waits for; it is through when the memory is free again.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from uccl import p2p

_T = TypeVar("_T")
_SLICE = 0.2  # seconds: how soon a thread that accepts sees that nobody waits for it any more

Integers = Sequence[int] | Any  # or a NumPy array
Blobs = Sequence[bytes] | Any


class Endpoint:
    """The calls of p2p.Endpoint that wait, as coroutines. ``sync`` is the endpoint itself, for all others.

    Transfers return their bytes. One event loop or several may use it. ``stream``: a CUDA stream whose work so far
    is to be done before a transfer touches memory here (p2p.Endpoint.write). Raises the classes of uccl.p2p.
    """

    def __init__(self, local_gpu_idx: int | None = None, num_cpus: int | None = None, **options: Any) -> None:
        self.sync = p2p.Endpoint(local_gpu_idx, num_cpus, **options)
        # What threads of accepts that were cancelled have taken: for the next accept.
        self._taken: deque[int] = deque()
        self._taken_local: deque[int] = deque()

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, timeout: float | None = None) -> None:
        """See p2p.Endpoint.close. It goes on to its end where the coroutine is cancelled."""
        await asyncio.shield(asyncio.to_thread(self.sync.close, timeout))

    # Connections

    async def connect(self, address: str, gpu: int | str = 0, port: int = -1) -> int:
        """Connects to a peer's endpoint and returns the conn_id."""
        return await self._connected(lambda: self.sync.connect(address, gpu, port))

    async def connect_local(self, gpu: int | str, port: int = -1) -> int:
        """Connects to this user's endpoint for a GPU on this host and returns the conn_id."""
        return await self._connected(lambda: self.sync.connect_local(gpu, port))

    async def add_remote_endpoint(self, metadata: bytes) -> int:
        """Connects to the endpoint with this metadata, once, and returns the conn_id."""
        return await self._connected(lambda: self.sync.add_remote_endpoint(metadata))

    async def accept(self, timeout: float | None = None) -> int:
        """Waits for a peer's connect() and returns the conn_id; ``sync.peer(conn_id)`` tells who it is.

        What a cancelled one had already taken goes to the next.
        """
        return await self._accepted(self.sync.accept, self._taken, timeout)

    async def accept_local(self, timeout: float | None = None) -> int:
        """Waits for a peer's connect_local() and returns the conn_id."""
        return await self._accepted(self.sync.accept_local, self._taken_local, timeout)

    async def disconnect(self, conn_id: int) -> None:
        """Lets what is under way finish, within seconds, and closes a connection."""
        await asyncio.shield(asyncio.to_thread(self.sync.remove_remote_endpoint, conn_id))

    async def _connected(self, call: Callable[[], tuple[bool, int]]) -> int:
        return await self._undone_if_cancelled(lambda: self._value(call()), self.sync.remove_remote_endpoint)

    async def _accepted(
        self, call: Callable[..., tuple[Any, ...]], taken: deque[int], timeout: float | None
    ) -> int:
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        wanted = True

        def slices() -> int | None:
            while wanted:
                with contextlib.suppress(IndexError):
                    return taken.popleft()
                left = _SLICE if end is None else min(_SLICE, max(0.0, end - loop.time()))
                answer = call(left)
                if answer[0]:
                    return int(answer[-1])
                if self.sync.closed or (end is not None and loop.time() >= end):
                    raise p2p.TimedOut(p2p.last_error())
            return None

        def keep(conn_id: int | None) -> None:
            if conn_id is not None:
                taken.append(conn_id)

        try:
            conn_id = await self._undone_if_cancelled(slices, keep)
        finally:
            wanted = False
        assert conn_id is not None
        return conn_id

    @staticmethod
    async def _undone_if_cancelled(call: Callable[[], _T], undo: Callable[[_T], object]) -> _T:
        """A call of a thread, which cannot be stopped: what it brings after a cancellation is given back."""
        thread = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:

            def give_back(done: "asyncio.Future[_T]") -> None:
                if not done.cancelled() and done.exception() is None:
                    asyncio.get_running_loop().run_in_executor(None, undo, done.result())

            thread.add_done_callback(give_back)
            raise

    @staticmethod
    def _value(answer: tuple[bool, int]) -> int:
        if not answer[0]:
            raise p2p.Error(p2p.last_error())
        return answer[1]

    # Memory

    def reg(self, pointer: int, size: int) -> int:
        """Registers memory and returns the mr_id."""
        ok, mr_id = self.sync.reg(pointer, size)
        if not ok:
            raise p2p.Error(p2p.last_error())
        return mr_id

    async def dereg(self, mr_id: int, timeout: float | None = None) -> None:
        """Ends a registration, once the transfers here that use it are done."""
        ok, reason = await asyncio.to_thread(lambda: (self.sync.dereg(mr_id, timeout), p2p.last_error()))
        if not ok:
            raise p2p.Error(reason)

    def advertise(self, mr_id: int, pointer: int, size: int) -> bytes:
        """The 64 bytes with which a peer reads and writes a range."""
        ok, blob = self.sync.advertise(mr_id, pointer, size)
        if not ok:
            raise p2p.Error(p2p.last_error())
        return bytes(blob)

    # Transfers

    async def send(self, conn_id: int, mr_id: int, pointer: int, size: int) -> int:
        """Sends a message to the peer's recv()."""
        return await self._done(self.sync.send_async(conn_id, mr_id, pointer, size))

    async def recv(self, conn_id: int, mr_id: int, pointer: int, size: int) -> int:
        """Receives a message of at most ``size`` bytes and returns its length."""
        return await self._done(self.sync.recv_async(conn_id, mr_id, pointer, size))

    async def sendv(self, conn_id: int, mr_ids: Integers, pointers: Integers, sizes: Integers) -> int:
        """send() of many pieces."""
        return await self._done(self.sync.sendv_async(conn_id, mr_ids, pointers, sizes))

    async def recvv(self, conn_id: int, mr_ids: Integers, pointers: Integers, sizes: Integers) -> int:
        """recv() into many pieces."""
        return await self._done(self.sync.recvv_async(conn_id, mr_ids, pointers, sizes))

    async def write(
        self, conn_id: int, mr_id: int, pointer: int, size: int, blob: bytes, *, stream: Any = None
    ) -> int:
        """Writes into the peer's memory that ``blob`` describes."""
        return await self._done(self.sync.write_async(conn_id, mr_id, pointer, size, blob, stream=stream))

    async def read(
        self, conn_id: int, mr_id: int, pointer: int, size: int, blob: bytes, *, stream: Any = None
    ) -> int:
        """Reads from the peer's memory that ``blob`` describes."""
        return await self._done(self.sync.read_async(conn_id, mr_id, pointer, size, blob, stream=stream))

    async def writev(
        self,
        conn_id: int,
        mr_ids: Integers,
        pointers: Integers,
        sizes: Integers,
        blobs: Blobs,
        *,
        stream: Any = None,
    ) -> int:
        """write() of many pieces."""
        return await self._done(self.sync.writev_async(conn_id, mr_ids, pointers, sizes, blobs, stream=stream))

    async def readv(
        self,
        conn_id: int,
        mr_ids: Integers,
        pointers: Integers,
        sizes: Integers,
        blobs: Blobs,
        *,
        stream: Any = None,
    ) -> int:
        """read() of many pieces."""
        return await self._done(self.sync.readv_async(conn_id, mr_ids, pointers, sizes, blobs, stream=stream))

    async def transfer(
        self,
        conn_id: int,
        operation: str,
        local: Sequence[p2p.XferDesc],
        remote: Sequence[p2p.XferDesc],
        *,
        stream: Any = None,
    ) -> int:
        """A "read" or "write" of pairs of XferDescs."""
        return await self._done(self.sync.transfer(conn_id, operation, local, remote, stream=stream))

    async def notify(self, conn_id: int, payload: bytes) -> None:
        """Sends bytes to the peer's take_notifications()."""
        ok, reason = await asyncio.to_thread(lambda: (self.sync.notify(conn_id, payload), p2p.last_error()))
        if not ok:
            raise p2p.Error(reason)

    def take_notifications(self, conn_id: int) -> list[bytes]:
        """What has come, oldest first."""
        return self.sync.take_notifications(conn_id)

    async def _done(self, started: tuple[bool, int]) -> int:
        return await self.sync.transfer_future(started)
