# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Puts a file of this package beside another package's, by link or copy, and takes it away."""

from __future__ import annotations

import argparse
import filecmp
import os
import pathlib
import shutil


def state(target: pathlib.Path, ours: pathlib.Path) -> str:
    """What is there: "absent", "linked", "copied", or "other" for what is not this package's."""
    if not os.path.lexists(target):
        return "absent"
    if target.is_symlink():
        return "linked" if target.resolve() == ours else "other"
    return "copied" if ours.is_file() and target.is_file() and filecmp.cmp(target, ours, shallow=False) else "other"


def install(target: pathlib.Path, ours: pathlib.Path, *, copy: bool, force: bool) -> str:
    """Links (or copies) it there; the state after. FileExistsError for what is not ours."""
    if state(target, ours) == "other" and not force:
        raise FileExistsError(f"{target} is from elsewhere; --force replaces it")
    draft = target.parent / f".{target.name}.{os.getpid()}"
    if copy:
        shutil.copyfile(ours, draft)
        draft.chmod(0o755)
    else:
        draft.symlink_to(ours)
    draft.replace(target)  # processes that start meanwhile see the old or the new, never a half
    return state(target, ours)


def uninstall(target: pathlib.Path, ours: pathlib.Path, *, force: bool) -> bool:
    """Takes it away; whether it was there."""
    found = state(target, ours)
    if found == "absent":
        return False
    if found == "other" and not force:
        raise FileExistsError(f"{target} is from elsewhere; --force removes it")
    target.unlink()
    return True


def parser(module: str, description: str, folder: str) -> argparse.ArgumentParser:
    """Of `python -m MODULE install|uninstall|status`."""
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    made.add_argument("command", choices=("install", "uninstall", "status"))
    made.add_argument("--dir", type=pathlib.Path, help=folder)
    made.add_argument("--copy", action="store_true", help="copy instead of linking")
    made.add_argument("--force", action="store_true", help="also replace or remove a file from elsewhere")
    return made
