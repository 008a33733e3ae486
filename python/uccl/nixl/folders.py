# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Puts the backend beside the plugins of installed NIXL wheels, and takes it away."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import pathlib
from dataclasses import dataclass

from uccl import _beside

BACKEND = "TCPX"
NAME = f"libplugin_{BACKEND}.so"
_OURS = pathlib.Path(__file__).resolve().parent / NAME

# The packages that bring NIXL's library, one for each kind of GPU runtime.
_PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl_rocm")


@dataclass(frozen=True)
class Place:
    """The plugin folder of one installed NIXL."""

    package: str
    version: str
    folder: pathlib.Path

    @property
    def supported(self) -> bool:
        """Whether the backend was built for this version's binary interface; later ones are tried."""
        numbers = self.version.split(".")
        return numbers[0].isdigit() and int(numbers[0]) >= 1


def plugin() -> pathlib.Path:
    """The backend that came with this package. FileNotFoundError if it was built without."""
    if not _OURS.is_file():
        raise FileNotFoundError(f"{_OURS}: this package was built without the NIXL backend (P2P_NIXL=OFF)")
    return _OURS


def places() -> list[Place]:
    """Every installed NIXL that this interpreter would import."""
    found = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = pathlib.Path(spec.origin).parent.parent / f".{package}.mesonpy.libs" / "plugins"
        if folder.is_dir():
            found.append(Place(package, _version(package), folder))
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _file(backend: str) -> str:
    if not backend.isidentifier():
        raise ValueError(f"a backend of NIXL cannot be called {backend!r}")
    return f"libplugin_{backend}.so"


def state(folder: pathlib.Path, *, backend: str = BACKEND) -> str:
    """What is in a plugin folder: "absent", "linked", "copied", or "other" for what is not this package's."""
    return _beside.state(folder / _file(backend), _OURS)


def install(
    folder: pathlib.Path, *, copy: bool = False, force: bool = False, backend: str = BACKEND
) -> str:
    """Links (or copies) the backend into a plugin folder; the state after. FileExistsError for what is not ours.

    ``backend`` is the name under which programs ask NIXL for it.
    """
    return _beside.install(folder / _file(backend), plugin(), copy=copy, force=force)


def uninstall(folder: pathlib.Path, *, force: bool = False, backend: str = BACKEND) -> bool:
    """Takes the backend out of a plugin folder; whether it was there."""
    return _beside.uninstall(folder / _file(backend), _OURS, force=force)


def loading_error() -> str | None:
    """Why the backend cannot be loaded on this system, if so: NIXL itself says that only in its debug log."""
    try:
        ctypes.CDLL(str(plugin()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return str(error)
    return None
