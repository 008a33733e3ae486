# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.p2p for coroutines: what waits is awaited, and what fails raises.

    async with aio.Endpoint() as ep:
        connection = await ep.connect(address, gpu, port)
        await ep.write(connection, region, pointer, size, blob)

Cancelling a coroutine cancels what it waits for; it is through when the memory is free again.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from uccl import _p2p, p2p
from uccl._errors import from_code

_T = TypeVar("_T")
_SLICE = 0.2  # seconds: how soon a thread that accepts sees that nobody waits for it any more

# The calls of p2p.Endpoint, by what they are here. Those in no row are called as they are; one that has an `_async`
# form is a transfer. python/aio_stub.py reads these rows, too.
_TRANSFERS = ("transfer",)
_CONNECT = ("connect", "connect_local")
_THREAD = ("add_remote_endpoint", "dereg", "deregister_memory", "explain", "notify", "remove_remote_endpoint")
_UNCHANGED = ("cancel",)  # False is an answer


class Endpoint:
    """Every call of p2p.Endpoint, with the same arguments. ``sync`` is that endpoint itself.

    Transfers, and calls that wait, are coroutines. Transfers return their bytes, accept() and the calls that connect
    the conn_id. Where p2p answers (ok, value) the answer here is the value, and None where it answers True or False;
    what fails raises the classes of uccl.p2p. One event loop or several may use it. A call of a thread (dereg,
    notify, ...) goes on to its end where the coroutine is cancelled.
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

    async def accept(self, timeout: float | None = None) -> int:
        """Waits for a peer's connect() and returns the conn_id; ``sync.peer(conn_id)`` tells who it is.

        What a cancelled one had already taken goes to the next.
        """
        return await self._accepted(self.sync.accept, self._taken, timeout)

    async def accept_local(self, timeout: float | None = None) -> int:
        """Waits for a peer's connect_local() and returns the conn_id."""
        return await self._accepted(self.sync.accept_local, self._taken_local, timeout)

    async def disconnect(self, conn_id: int) -> None:
        """Lets what is under way finish, within seconds, and closes a connection: remove_remote_endpoint."""
        await self._in_thread(self.sync.remove_remote_endpoint, conn_id)

    async def wait(self, transfer_id: int, timeout: float | None = None) -> int:
        """Waits until a transfer is done and returns its bytes. See p2p.Endpoint.wait_async."""
        return await self.sync.wait_async(transfer_id, timeout)

    wait_async = wait

    def transfer_future(self, transfer_id: int) -> p2p.Awaitable:
        """Makes what an ``*_async`` call gave awaitable, any number of times, for its bytes."""
        return self.sync.transfer_future((True, transfer_id))

    async def _in_thread(self, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        return await asyncio.shield(asyncio.to_thread(lambda: _value(call(*args, **keywords))))

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


def _value(answer: Any) -> Any:
    """What a call of p2p answered, without its ``ok``. In the thread of that call, which knows why it failed."""
    if isinstance(answer, bool):
        ok, value = answer, None
    elif isinstance(answer, tuple) and isinstance(answer[0], bool):
        ok, value = answer
    else:
        return answer
    if not ok:
        raise from_code(*_p2p._last_failure())
    return value


def _here(name: str, plain: Any) -> Any:
    """The call of this module for one of p2p.Endpoint."""
    if isinstance(plain, property):
        return property(lambda self: getattr(self.sync, name), doc=plain.__doc__)
    moves = hasattr(p2p.Endpoint, f"{name}_async")
    start = f"{name}_async" if moves else name

    async def transfer(self: Endpoint, *args: Any, **keywords: Any) -> Any:
        return await self.sync.transfer_future(getattr(self.sync, start)(*args, **keywords))

    async def connect(self: Endpoint, *args: Any, **keywords: Any) -> Any:
        dial = functools.partial(getattr(self.sync, name), *args, **keywords)
        return await self._undone_if_cancelled(lambda: _value(dial()), self.sync.remove_remote_endpoint)

    async def in_thread(self: Endpoint, *args: Any, **keywords: Any) -> Any:
        return await self._in_thread(getattr(self.sync, name), *args, **keywords)

    def at_once(self: Endpoint, *args: Any, **keywords: Any) -> Any:
        answer = getattr(self.sync, name)(*args, **keywords)
        return answer if name in _UNCHANGED else _value(answer)

    call: Any = at_once
    if moves or name in _TRANSFERS:
        call = transfer
    elif name in _CONNECT:
        call = connect
    elif name in _THREAD:
        call = in_thread
    call.__name__, call.__qualname__, call.__doc__ = name, f"Endpoint.{name}", plain.__doc__
    return call


for _name in dir(p2p.Endpoint):
    if not _name.startswith("_") and _name not in vars(Endpoint):
        _plain = vars(p2p.Endpoint).get(_name, vars(_p2p.Endpoint).get(_name))
        setattr(Endpoint, _name, _here(_name, _plain) if hasattr(_plain, "__get__") else _plain)  # else static
