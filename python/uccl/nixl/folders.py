# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Puts the backend beside the plugins of installed NIXL wheels, and takes it away."""

from __future__ import annotations

import ctypes
import filecmp
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
from dataclasses import dataclass

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
    target = folder / _file(backend)
    if not os.path.lexists(target):
        return "absent"
    if target.is_symlink():
        return "linked" if target.resolve() == _OURS else "other"
    return "copied" if _OURS.is_file() and filecmp.cmp(target, _OURS, shallow=False) else "other"


def install(
    folder: pathlib.Path, *, copy: bool = False, force: bool = False, backend: str = BACKEND
) -> str:
    """Links (or copies) the backend into a plugin folder; the state after. FileExistsError for what is not ours.

    ``backend`` is the name under which programs ask NIXL for it.
    """
    target = folder / _file(backend)
    if state(folder, backend=backend) == "other" and not force:
        raise FileExistsError(f"{target} is from elsewhere; --force replaces it")
    draft = folder / f".{target.name}.{os.getpid()}"
    if copy:
        shutil.copyfile(plugin(), draft)
        draft.chmod(0o755)
    else:
        draft.symlink_to(plugin())
    draft.replace(target)  # processes that start meanwhile see the old or the new, never a half
    return state(folder, backend=backend)


def uninstall(folder: pathlib.Path, *, force: bool = False, backend: str = BACKEND) -> bool:
    """Takes the backend out of a plugin folder; whether it was there."""
    target = folder / _file(backend)
    found = state(folder, backend=backend)
    if found == "absent":
        return False
    if found == "other" and not force:
        raise FileExistsError(f"{target} is from elsewhere; --force removes it")
    target.unlink()
    return True


def loading_error() -> str | None:
    """Why the backend cannot be loaded on this system, if so: NIXL itself says that only in its debug log."""
    try:
        ctypes.CDLL(str(plugin()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        return str(error)
    return None
