# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""python -m uccl.nixl install|uninstall|status"""

from __future__ import annotations

import argparse
import os
import sys

from uccl import _beside

from . import folders


def main() -> int:
    parser = _beside.parser(
        "uccl.nixl", "The NIXL backend TCPX.", "a plugin folder, in place of those of the installed NIXL"
    )
    parser.add_argument(
        "--as", dest="backend", default=folders.BACKEND, metavar="NAME", help="the name by which programs ask for it"
    )
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except (OSError, ValueError) as error:
        print(f"uccl.nixl: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    name = arguments.backend
    places = folders.places()
    if arguments.dir is not None:
        places = [folders.Place("folder", "unknown", arguments.dir)]
    if not places:
        print("uccl.nixl: no NIXL is installed for this Python (pip install nixl)", file=sys.stderr)
        return 1
    print(f"backend: {folders.plugin()}")
    if reason := folders.loading_error():
        print(f"it cannot be loaded here: {reason}", file=sys.stderr)
        return 1
    for place in places:
        if arguments.command == "install":
            if not place.supported and place.version != "unknown":
                print(f"{place.package} {place.version}: skipped: the backend is for NIXL 1.0 and later")
                continue
            result = folders.install(place.folder, copy=arguments.copy, force=arguments.force, backend=name)
        elif arguments.command == "uninstall":
            gone = folders.uninstall(place.folder, force=arguments.force, backend=name)
            result = "removed" if gone else "absent"
        else:
            result = folders.state(place.folder, backend=name)
        print(f"{place.package} {place.version}: {result} ({place.folder})")
    if folder := os.environ.get("NIXL_PLUGIN_DIR"):
        print(f"NIXL_PLUGIN_DIR={folder}: NIXL looks there and nowhere else")
    return 0


if __name__ == "__main__":
    sys.exit(main())
