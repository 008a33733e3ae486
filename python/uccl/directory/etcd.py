# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A directory in etcd 3.4 or newer, by its JSON gateway."""

import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from uccl._http import ask
from uccl.directory.base import Directory, DirectoryError, Entry

_T = TypeVar("_T")

_PORT = 2379  # etcd's own

# Seconds for one answer.
_PATIENCE = 3.0
_MOST_BYTES = 16 << 20


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


class EtcdDirectory(Directory):
    """Keys ``prefix/name``, ``/uccl/endpoints`` unless the URL's path says so, under one lease of etcd's."""

    def __init__(self, url: str, lease: float = 6.0) -> None:
        super().__init__(lease)
        try:
            parts = urlsplit(url)
            place = parts.netloc if parts.port is not None else f"{parts.netloc.rstrip(':')}:{_PORT}"
        except ValueError as error:
            raise ValueError(f"use the directory {url}: {error}") from error
        if not parts.hostname:
            raise ValueError(f"use the directory {url}: no host")
        self._place = place
        self._server = f"{parts.scheme}://{place}"
        # Not by a proxy that the environment names.
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._prefix = f"{parts.path.rstrip('/') or '/uccl/endpoints'}/"
        self._lease_id: str | None = None
        self._leases: dict[str, str] = {}  # by names; "": not sure

    def _ask(self, call: str, body: dict[str, Any], read: Callable[[Any], _T]) -> _T:
        connection = self._connection(self._place)
        headers = {"Content-Type": "application/json"}
        try:
            answer = ask(
                connection, "POST", f"/v3/{call}", json.dumps(body).encode(), headers, seconds=_PATIENCE, most_bytes=_MOST_BYTES
            )
        except (OSError, ValueError) as error:
            raise DirectoryError(f"{call} of etcd at {self._server}: {error}") from error
        if answer.status != 200:
            raise DirectoryError(f"{call} of etcd at {self._server}: {answer.body[:300].decode(errors='replace')}")
        try:
            return read(json.loads(answer.body))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DirectoryError(f"{call} of etcd at {self._server}: an answer that is none") from error

    def _grant(self) -> str:
        with self._lock:
            if self._lease_id is not None:
                return self._lease_id
        granted = self._ask("lease/grant", {"TTL": max(1, int(self.lease))}, lambda said: str(said["ID"]))
        with self._lock:
            self._lease_id = granted
            return granted

    def _lose(self) -> None:
        with self._lock:
            self._lease_id = None

    def _put(self, entry: Entry) -> None:
        with self._lock:
            self._leases[entry.name] = ""  # until it is there as it is now
        try:
            self._put_under(self._grant(), entry)
        except DirectoryError as error:
            if "lease not found" not in str(error):
                raise
            self._lose()  # it is over, or this etcd has begun anew
            self._put_under(self._grant(), entry)

    def _put_under(self, lease: str, entry: Entry) -> None:
        key = _coded(self._prefix + entry.name)
        self._ask("kv/put", {"key": key, "value": _coded(entry.text()), "lease": lease}, bool)
        with self._lock:
            self._leases[entry.name] = lease

    # One word for all of them; what is under another lease, which is over, is put again.
    def _renew(self, entries: list[Entry]) -> None:
        left = self._ask(
            "lease/keepalive", {"ID": self._grant()}, lambda said: int(said.get("result", {}).get("TTL", 0))
        )
        if left <= 0:
            self._lose()
        lease = self._grant()
        # The lease keeps what could not be withdrawn, or was put though its answer was lost.
        for name in set(self._leases) - {entry.name for entry in entries}:
            self._remove(name)
        super()._renew([entry for entry in entries if self._leases.get(entry.name) != lease])

    def _remove(self, name: str) -> None:
        self._ask("kv/deleterange", {"key": _coded(self._prefix + name)}, bool)
        with self._lock:
            self._leases.pop(name, None)

    def _range(self, body: dict[str, str]) -> dict[str, Entry]:
        pairs = self._ask(
            "kv/range",
            body,
            lambda said: [(b64decode(pair["key"]), b64decode(pair.get("value", ""))) for pair in said.get("kvs", [])],
        )
        named = {key.decode(errors="replace")[len(self._prefix) :]: value for key, value in pairs}
        parsed = {name: Entry.parse(name, value) for name, value in named.items()}
        return {name: entry for name, entry in parsed.items() if entry is not None}

    def _get(self, name: str) -> Entry | None:
        return self._range({"key": _coded(self._prefix + name)}).get(name)

    def _all(self) -> dict[str, Entry]:
        end = self._prefix[:-1] + chr(ord("/") + 1)
        return self._range({"key": _coded(self._prefix), "range_end": _coded(end)})
