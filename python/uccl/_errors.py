# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The exceptions of uccl.p2p, one for each kind of failure of the engine."""


class Error(RuntimeError):
    """A failure of the engine. The text says what was attempted, on what, and why it failed.

    ``code`` names the kind for programs: "peer_gone", "timed_out" and so on.
    """

    code = "system"


class InvalidArgument(Error, ValueError):
    """The call itself is wrong: lengths differ, a blob has the wrong size, a null pointer."""

    code = "invalid_argument"


class OutOfRange(Error, ValueError):
    """A range lies outside the region that it names."""

    code = "out_of_range"


class NotFound(Error):
    """The region, connection, transfer or endpoint does not exist (any more)."""

    code = "not_found"


class PermissionDenied(Error):
    """A key, a secret or the operating system refused."""

    code = "permission_denied"


class Unavailable(Error):
    """This machine, build or peer cannot do it."""

    code = "unavailable"


class PeerGone(Error, ConnectionError):
    """The peer died, hung, left or closed the connection."""

    code = "peer_gone"


class TimedOut(Error, TimeoutError):
    """The deadline passed first."""

    code = "timed_out"


class Cancelled(Error):
    """cancel() or the end of a connection ended it."""

    code = "cancelled"


class MessageTooLong(Error):
    """A sent message is longer than the receive that it met."""

    code = "message_too_long"


class ProtocolError(Error):
    """The other side sent what the protocol does not allow."""

    code = "protocol"


class SystemFailure(Error):
    """A system call or a driver failed."""

    code = "system"


class DataMismatch(Error):
    """The bytes at the destination are not the source's: of a transfer with verify=True."""

    code = "data_mismatch"


_BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        OutOfRange,
        NotFound,
        PermissionDenied,
        Unavailable,
        PeerGone,
        TimedOut,
        Cancelled,
        MessageTooLong,
        ProtocolError,
        SystemFailure,
        DataMismatch,
    )
}


def from_code(code: str, message: str) -> Error:
    """The exception for one of the engine's error codes."""
    return _BY_CODE.get(code, Error)(message)
