# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Who has which versions of a set of weights, by a directory."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from uccl.directory import Directory, DirectoryError

_log = logging.getLogger("uccl.weights")


class Listing:
    """The entries of one set of weights: names ``weights/NAME/HOST:PORT``, versions as their notes. Any thread."""

    def __init__(self, directory: Directory, name: str) -> None:
        if not name or "/" in name or "\n" in name:
            raise ValueError(f"weights called {name!r}: a name is one line without '/'")
        self._directory = directory
        self._prefix = f"weights/{name}/"
        self._reached = True
        self._listed: str | None = None

    def places(self) -> dict[str, set[int]]:
        """host:port of all who are listed, and what they have; empty: not known. DirectoryError."""
        found = {}
        for entry in self._directory.entries():
            if entry.name.startswith(self._prefix):
                host = f"[{entry.address}]" if ":" in entry.address else entry.address
                found[f"{host}:{entry.port}"] = {int(word) for word in entry.note.split() if word.isdigit()}
        return found

    def known_places(self) -> dict[str, set[int]]:
        """The same; nobody, and one warning, while the directory is down."""
        try:
            found = self.places()
        except DirectoryError as error:
            if self._reached:
                _log.warning("nobody new is found, and those who are known go on, until the directory is back: %s", error)
            self._reached = False
            return {}
        self._reached = True
        return found

    def put(self, place: str, versions: Iterable[int] = ()) -> None:
        """Lists who listens there, with these versions. DirectoryError: the first time, the directory is down."""
        if self._listed not in (None, place):
            self.withdraw()
        self._directory.publish(self._prefix + place, place, note=" ".join(str(version) for version in sorted(versions)))
        self._listed = place

    def withdraw(self) -> None:
        if self._listed is not None:
            self._directory.withdraw(self._prefix + self._listed)
        self._listed = None
