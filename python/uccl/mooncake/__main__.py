# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""python -m uccl.mooncake install|uninstall|status"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys
import sysconfig

from uccl import _beside

# For `mooncake` and `mooncake.engine`. A folder `engine` goes before Mooncake's own engine.so beside it.
_OURS = pathlib.Path(__file__).resolve().parent / "alias"
_FILES = pathlib.Path("engine/__init__.py"), pathlib.Path("__init__.py")


def package(folder: pathlib.Path | None = None) -> pathlib.Path:
    """The folder of the package mooncake: within ``folder``, else the installed one, else where it would be."""
    if folder is None:
        found = importlib.util.find_spec("mooncake")
        if found is not None and found.submodule_search_locations:
            return pathlib.Path(next(iter(found.submodule_search_locations)))
        folder = pathlib.Path(sysconfig.get_path("purelib"))
    return folder / "mooncake"


def state(place: pathlib.Path) -> str:
    """Of mooncake.engine there: "absent" (Mooncake's own, if it is installed), "linked", "copied" or "other"."""
    return _beside.state(place / _FILES[0], _OURS / _FILES[0])


def install(place: pathlib.Path, *, copy: bool = False, force: bool = False) -> str:
    """Makes `from mooncake.engine import TransferEngine` give uccl.mooncake's; the state after."""
    engine, whole = _FILES
    (place / engine).parent.mkdir(parents=True, exist_ok=True)
    after = _beside.install(place / engine, _OURS / engine, copy=copy, force=force)
    if not (place / whole).exists():  # else Mooncake is installed: what it has besides stays as it is
        _beside.install(place / whole, _OURS / whole, copy=copy, force=force)
    return after


def uninstall(place: pathlib.Path, *, force: bool = False) -> bool:
    """Takes away what install() made; whether it was there."""
    was_there = _beside.uninstall(place / _FILES[0], _OURS / _FILES[0], force=force)
    if _beside.state(place / _FILES[1], _OURS / _FILES[1]) in ("linked", "copied"):
        (place / _FILES[1]).unlink()
    for folder in (place / "engine", place):
        if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {"__pycache__"}:
            shutil.rmtree(folder)
    return was_there


def main() -> int:
    what = "Mooncake's TransferEngine on uccl.p2p."
    arguments = _beside.parser("uccl.mooncake", what, "a folder, in place of this Python's packages").parse_args()
    place = package(arguments.dir)
    try:
        if arguments.command == "install":
            result = install(place, copy=arguments.copy, force=arguments.force)
        elif arguments.command == "uninstall":
            result = "removed" if uninstall(place, force=arguments.force) else "absent"
        else:
            result = state(place)
    except OSError as error:
        print(f"uccl.mooncake: {error}", file=sys.stderr)
        return 1
    print(f"mooncake.engine: {result} ({place})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
