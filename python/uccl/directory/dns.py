# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The names that a cluster's DNS gives the pods of a headless service."""

import socket

from uccl.directory.base import Directory, DirectoryError, Entry


class DnsDirectory(Directory):
    """``service.namespace.svc:port``. A name is a pod's (``web-0`` of a StatefulSet, or its ``hostname``), and all pods
    listen at the one port. Who is listed is the cluster's affair: what is published only has to be at that port."""

    def __init__(self, where: str, lease: float = 6.0) -> None:
        super().__init__(lease)
        service = Entry.of("the service", where)
        self._service, self._port = service.address, service.port

    def _put(self, entry: Entry) -> None:
        if entry.port != self._port:
            raise DirectoryError(
                f"publish {entry.name!r}: it listens at port {entry.port}, and those of {self._service} at {self._port}: "
                f"set UCCL_P2P_PORT={self._port}"
            )

    def _remove(self, name: str) -> None:
        pass

    def _addresses(self, host: str) -> list[str]:
        try:
            found = socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
                return []
            raise DirectoryError(f"look {host} up: {error.strerror}") from error
        except UnicodeError as error:  # a part that is empty, or of more than 63 bytes
            raise DirectoryError(f"look {host} up: no name in DNS: {error}") from error
        return list(dict.fromkeys(str(address[4][0]) for address in found))

    def _get(self, name: str) -> Entry | None:
        addresses = self._addresses(f"{name}.{self._service}")
        return Entry(name, addresses[0], self._port) if addresses else None

    def _all(self) -> dict[str, Entry]:
        """By addresses: DNS does not say the names of a service's pods."""
        return {address: Entry(address, address, self._port) for address in self._addresses(self._service)}
