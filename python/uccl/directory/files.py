# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Directories of files: a list that somebody has written, and a folder that all processes see."""

import errno
import os
import stat
import time
from pathlib import Path
from urllib.parse import quote, unquote

from uccl.directory.base import Directory, DirectoryError, Entry

_SUFFIX = ".endpoint"

# Seconds after which what was not renewed is removed by whoever looks.
_SWEEP_SECONDS = 60.0

_MOST_BYTES = 16 << 20


def _read(path: Path) -> bytes:
    """A file's bytes. Raises OSError also for a pipe, on which it would wait for ever, and for more than _MOST_BYTES."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise OSError(errno.EINVAL, "it is no file, or too long")
        return os.pread(file, status.st_size, 0)
    finally:
        os.close(file)


class StaticDirectory(Directory):
    """``name=host:port``, by commas or lines, in a file (an absolute path), in a variable (``$NAME``), or as it is. A
    file is read again at each call. Nothing can be published."""

    def __init__(self, where: str, lease: float = 6.0) -> None:
        super().__init__(lease)
        if where.startswith("$"):
            variable = where[1:]
            if variable not in os.environ:
                raise ValueError(f"use the directory static://{where}: the variable is not set")
            where = os.environ[variable]
        self._where = where

    def _put(self, entry: Entry) -> None:
        known = self._get(entry.name)
        if known is None or (known.address, known.port) != (entry.address, entry.port):
            said = "is not there" if known is None else f"is {known.address}:{known.port} there"
            raise DirectoryError(
                f"publish {entry.name!r} as {entry.address}:{entry.port}: nothing can be written to a static directory, "
                f"and it {said}"
            )

    def _remove(self, name: str) -> None:
        pass

    def _get(self, name: str) -> Entry | None:
        return self._all().get(name)

    def _all(self) -> dict[str, Entry]:
        text = self._where
        if text.startswith("/"):
            try:
                text = _read(Path(text)).decode()
            except (OSError, ValueError) as error:
                raise DirectoryError(f"read the static directory {self._where}: {error}") from error
        found = {}
        for line in text.replace(",", "\n").splitlines():
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, equals, place = line.partition("=")
            if not equals:
                raise DirectoryError(f"read the static directory: {line!r} is no name=host:port")
            try:
                found[name.strip()] = Entry.of(name.strip(), place.strip())
            except ValueError as error:
                raise DirectoryError(f"read the static directory: {error}") from error
        return found


class FolderDirectory(Directory):
    """One file for each name, in a folder of this host or of a file system that hosts share. Made if it is not there."""

    def __init__(self, where: str, lease: float = 6.0) -> None:
        super().__init__(lease)
        if not where.startswith("/"):
            raise ValueError(f"use the directory folder://{where}: not an absolute path")
        self._folder = Path(where)

    def _path(self, name: str) -> Path:
        file = quote(name, safe="")
        if file.startswith("."):  # as drafts do
            file = f"%2E{file[1:]}"
        return self._folder / f"{file}{_SUFFIX}"

    def _put(self, entry: Entry) -> None:
        path = self._path(entry.name)
        draft = path.with_name(f".{os.getpid()}-{id(self)}-{path.name}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            draft.write_text(entry.text(until=self._until()))
            draft.replace(path)  # whole, or not yet
        except OSError as error:
            raise DirectoryError(f"publish {entry.name!r} in {self._folder}: {error.strerror}") from error

    def _remove(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise DirectoryError(f"withdraw {name!r} in {self._folder}: {error.strerror}") from error

    def _get(self, name: str) -> Entry | None:
        try:
            return Entry.parse(name, _read(self._path(name)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DirectoryError(f"look {name!r} up in {self._folder}: {error.strerror}") from error

    def _all(self) -> dict[str, Entry]:
        found = {}
        try:
            paths = [path for path in self._folder.iterdir() if path.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DirectoryError(f"list {self._folder}: {error.strerror}") from error
        for path in paths:
            name = unquote(path.name[: -len(_SUFFIX)]) if not path.name.startswith(".") else ""
            try:
                entry = self._get(name) if name else None
            except DirectoryError:
                entry = None  # one that cannot be read hides none
            if entry is not None:
                found[name] = entry
            else:
                self._sweep(path)
        return found

    def _sweep(self, path: Path) -> None:
        try:
            if path.stat().st_mtime + _SWEEP_SECONDS < time.time():
                path.unlink()
        except OSError:
            pass  # another did, or it is another's
