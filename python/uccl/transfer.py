# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Pushes tensors to a peer: the receiver offers memory, the sender writes, each tells the other.

Control messages go over one TCP connection a peer, as JSON and bytes (uccl.utils); nothing is pickled. The
control port has no authentication: bind it to an interface that only the peers reach.
"""

import socket
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from uccl import p2p, utils

_ACCEPT_SECONDS = 600.0
_HANDSHAKE_SECONDS = 20.0
_PROTOCOL = 1


class TransferManager:
    """Moves registered tensors between two processes that may be on different hosts.

    ``listen_port`` is the TCP port of the control socket (0: any; see ``listen_port`` afterwards).
    ``conn_table`` and ``transfer_table`` hold what there is, by conn_id and by the id of register_transfer().
    """

    @dataclass
    class ConnState:
        """A peer."""

        local_gpu_idx: int
        remote_gpu_idx: int
        socket: socket.socket
        conn_id: int
        is_local: bool
        lock: threading.Lock = field(default_factory=threading.Lock)
        inbox: dict[str, list[Any]] = field(default_factory=dict)

    @dataclass
    class TransferState:
        """A registered tensor."""

        data: int
        size: int
        mr_id: int
        conn_state: "TransferManager.ConnState"
        tensor: torch.Tensor  # kept: the engine knows its address only

        @property
        def conn_id(self) -> int:
            return self.conn_state.conn_id

    def __init__(
        self, local_gpu_idx: int, num_cpus: int, listen_port: int, listen_address: str = "0.0.0.0"
    ) -> None:
        self.local_gpu_idx = local_gpu_idx
        self.num_cpus = num_cpus
        self.ep = p2p.Endpoint(local_gpu_idx, num_cpus)
        self.local_ep_ip, self.local_ep_port, _ = p2p.Endpoint.parse_metadata(self.ep.get_metadata())
        self.listen_socket = socket.create_server((listen_address, listen_port))
        self.listen_port: int = self.listen_socket.getsockname()[1]
        self.conn_table: dict[int, TransferManager.ConnState] = {}
        self.transfer_table: dict[int, TransferManager.TransferState] = {}
        self._arrived: dict[tuple[str, int], list[int]] = {}
        self._next_transfer = 0
        self._lock = threading.Lock()

    def connect(self, remote_ip: str, remote_listen_port: int) -> int:
        """Connects to a manager that accepts and returns the conn_id. Raises OSError or p2p.Error."""
        control = utils.create_socket_and_connect(remote_ip, remote_listen_port)
        try:
            control.settimeout(_HANDSHAKE_SECONDS)
            utils.send_obj(control, self._hello())
            ok, connection = self.ep.connect(*self._dialled(self._metadata_of(utils.recv_obj(control))))
            utils.send_obj(control, {"connected": ok})
            if not ok:
                raise p2p.PeerGone(p2p.last_error())
            return self._add_peer(control, connection)
        except BaseException:
            control.close()
            raise

    def accept(self, timeout: float | None = _ACCEPT_SECONDS) -> int:
        """Waits (seconds) for a manager that connects and returns the conn_id. TimedOut if none comes."""
        self.listen_socket.settimeout(timeout)
        try:
            control, _ = self.listen_socket.accept()
        except TimeoutError:
            raise p2p.TimedOut(f"no manager has connected within {timeout} s") from None
        try:
            control.settimeout(_HANDSHAKE_SECONDS)
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            metadata = self._metadata_of(utils.recv_obj(control))
            utils.send_obj(control, self._hello())
            answer = utils.recv_obj(control)
            if not isinstance(answer, dict) or not answer.get("connected"):
                raise p2p.PeerGone("the peer could not reach this endpoint")
            return self._add_peer(control, self._accept_from(metadata, timeout))
        except BaseException:
            control.close()
            raise

    def _hello(self) -> dict[str, Any]:
        return {"protocol": _PROTOCOL, "metadata": self.ep.get_metadata().hex()}

    @staticmethod
    def _dialled(metadata: bytes) -> tuple[str, int | str, int]:
        address, port, gpu = p2p.Endpoint.parse_metadata(metadata)
        return address, gpu, port

    def _accept_from(self, metadata: bytes, timeout: float | None) -> int:
        """The connection of this peer; those of others that come first wait for their own accept()."""
        address, port, _ = p2p.Endpoint.parse_metadata(metadata)
        while True:
            with self._lock:
                if self._arrived.get((address, port)):
                    return self._arrived[address, port].pop(0)
            ok, _, _, connection = self.ep.accept(timeout=timeout)
            if not ok:
                raise p2p.TimedOut(p2p.last_error())
            peer = self.ep.peer(connection)
            with self._lock:
                self._arrived.setdefault((peer["address"], peer["port"]), []).append(connection)

    @staticmethod
    def _metadata_of(hello: Any) -> bytes:
        if not isinstance(hello, dict) or hello.get("protocol") != _PROTOCOL:
            raise p2p.ProtocolError("the peer is not a TransferManager of this version")
        return bytes.fromhex(str(hello.get("metadata", "")))

    def _add_peer(self, control: socket.socket, connection: int) -> int:
        control.settimeout(None)
        # Without a word from the peer's host for this long its calls end.
        control.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)
        peer = self.ep.peer(connection)
        with self._lock:
            self.conn_table[connection] = self.ConnState(
                local_gpu_idx=self.local_gpu_idx,
                remote_gpu_idx=peer["gpu_idx"],
                socket=control,
                conn_id=connection,
                is_local=peer["address"] == self.local_ep_ip,
            )
        return connection

    def _peer(self, conn_id: int) -> "TransferManager.ConnState":
        if conn_id not in self.conn_table:
            raise ValueError(f"no connection has the id {conn_id}")
        return self.conn_table[conn_id]

    def _transfer(self, transfer_id: int) -> "TransferManager.TransferState":
        if transfer_id not in self.transfer_table:
            raise ValueError(f"no transfer has the id {transfer_id}")
        return self.transfer_table[transfer_id]

    def register_transfer(self, conn_id: int, tensor: torch.Tensor) -> int:
        """Registers a contiguous tensor for a connection and returns the transfer's id."""
        peer = self._peer(conn_id)
        if not tensor.is_contiguous():
            raise ValueError("the tensor is not contiguous: the peer is told one range of memory")
        size = tensor.numel() * tensor.element_size()
        ok, mr_id = self.ep.reg(tensor)
        if not ok:
            raise p2p.Error(p2p.last_error())
        with self._lock:
            transfer_id = self._next_transfer
            self._next_transfer += 1
            self.transfer_table[transfer_id] = self.TransferState(tensor.data_ptr(), size, mr_id, peer, tensor)
        return transfer_id

    def deregister_transfer(self, transfer_id: int) -> bool:
        """Ends a registration; the peer can no longer write there."""
        transfer = self._transfer(transfer_id)
        if not self.ep.dereg(transfer.mr_id):
            raise p2p.Error(p2p.last_error())
        with self._lock:
            del self.transfer_table[transfer_id]
        return True

    def post_transfer_metadata(self, transfer_id: int) -> bool:
        """Receiver: tells the peer where to write. Always True."""
        transfer = self._transfer(transfer_id)
        ok, blob = self.ep.advertise(transfer.conn_id, transfer.mr_id, transfer.data, transfer.size)
        if not ok:
            raise p2p.Error(p2p.last_error())
        self._send(transfer.conn_id, "metadata", blob.hex())
        return True

    def fetch_transfer_metadata(self, transfer_id: int) -> bytes:
        """Sender: waits for where to write."""
        return bytes.fromhex(self._receive(self._transfer(transfer_id).conn_id, "metadata"))

    def do_transfer_async(self, transfer_id: int, transfer_metadata: bytes) -> int:
        """Sender: starts the write and returns an id for check_transfer_done()."""
        transfer = self._transfer(transfer_id)
        ok, poll_id = self.ep.write_async(
            transfer.conn_id, transfer.mr_id, transfer.data, transfer.size, transfer_metadata
        )
        if not ok:
            raise p2p.Error(p2p.last_error())
        return poll_id

    def check_transfer_done(self, transfer_id: int, poll_id: int) -> bool:
        """Sender: whether the bytes are at the peer. Raises p2p.Error if the write failed."""
        self._transfer(transfer_id)
        _, done = self.ep.poll_async(poll_id)
        if done:
            self.ep.wait(poll_id)
        return done

    def post_transfer_done(self, transfer_id: int) -> bool:
        """Sender: tells the peer that its memory is written. Always True."""
        self._send(self._transfer(transfer_id).conn_id, "done", None)
        return True

    def wait_transfer_done(self, transfer_id: int) -> bool:
        """Receiver: waits for that; always True. Raises ConnectionError if the peer leaves instead."""
        self._receive(self._transfer(transfer_id).conn_id, "done")
        return True

    def _send(self, conn_id: int, kind: str, value: Any) -> None:
        peer = self._peer(conn_id)
        with self._lock:
            utils.send_obj(peer.socket, [kind, value])

    def _receive(self, conn_id: int, kind: str) -> Any:
        """The oldest message of a kind; others that come first wait for their own call."""
        peer = self._peer(conn_id)
        with peer.lock:
            while not peer.inbox.get(kind):
                message = utils.recv_obj(peer.socket)
                if not isinstance(message, list) or len(message) != 2 or message[0] not in ("metadata", "done"):
                    raise p2p.ProtocolError("the peer sent a control message that does not exist")
                peer.inbox.setdefault(message[0], []).append(message[1])
            return peer.inbox[kind].pop(0)

    def close(self) -> None:
        """Closes the control sockets and the endpoint."""
        self.listen_socket.close()
        for peer in self.conn_table.values():
            peer.socket.close()
        self.conn_table.clear()
        self.transfer_table.clear()
        self.ep.close()

    def __enter__(self) -> "TransferManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
