# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""One question by HTTP, of which the whole answer has a bound in seconds and in bytes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    reason: str
    body: bytes


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float,
    most_bytes: int,
) -> Answer:
    """The answer, after which the connection is closed. Raises OSError: nobody is there, what came is no HTTP or longer
    than ``most_bytes``, or, as TimeoutError, it was not there within ``seconds``, however it trickles."""
    connection.timeout = seconds
    late = threading.Event()
    too_late = TimeoutError(f"the answer was not there within {seconds:g} s")
    timer = None
    try:
        connection.connect()
        sock = connection.sock

        def cut_off() -> None:
            late.set()
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

        timer = threading.Timer(seconds, cut_off)
        timer.start()
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        said = answer.read(most_bytes + 1)
    except (http.client.HTTPException, OSError) as error:
        if late.is_set():
            raise too_late from error
        if isinstance(error, OSError):
            raise
        raise OSError(f"{type(error).__name__}: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()
    if late.is_set():
        raise too_late
    if len(said) > most_bytes:
        raise OSError(f"the answer has more than {most_bytes} bytes")
    return Answer(answer.status, answer.reason, said)
