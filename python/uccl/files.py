# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Where the programs and libraries lie that came with the package.

    python -m uccl.files     # all of them, one a line

``p2p-perf`` and ``tcpx`` are commands as well. ``softnet`` is what ``NCCL_NET_PLUGIN`` and ``UCCL_P2P_NCCL_NET_PLUGIN``
take; ``tcpx_library`` exports the C functions of ``tcpx_header``. The NIXL backend is ``uccl.nixl.plugin()``.
"""

from __future__ import annotations

import os
import pathlib
import sys
from typing import NoReturn

_FOLDER = pathlib.Path(__file__).resolve().parent


def _here(*parts: str) -> pathlib.Path:
    path = _FOLDER.joinpath(*parts)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: this package was built without it")
    return path


def program(name: str) -> pathlib.Path:
    """``p2p-perf`` or ``tcpx``."""
    return _here("bin", name)


def softnet() -> pathlib.Path:
    """The NCCL net plugin over plain sockets."""
    return _here("lib", "libnccl-net-soft.so")


def tcpx_library() -> pathlib.Path:
    """libtcpx_p2p, by the name that the loader knows."""
    return _here("lib", "libtcpx_p2p.so.0")


def tcpx_header() -> pathlib.Path:
    """The C declarations of libtcpx_p2p."""
    return _here("include", "tcpx", "interface.h")


def _become(name: str) -> NoReturn:
    path = program(name)
    os.execv(path, [name, *sys.argv[1:]])


def perf() -> NoReturn:
    """The command p2p-perf; ``p2p-perf report`` is uccl.report."""
    if sys.argv[1:2] == ["report"]:
        from uccl import report

        sys.exit(report.main(sys.argv[2:]))
    _become("p2p-perf")


def tcpx() -> NoReturn:
    """The command tcpx."""
    _become("tcpx")


def _main() -> None:
    for path in (program("p2p-perf"), program("tcpx"), softnet(), tcpx_library(), tcpx_header()):
        print(path)


if __name__ == "__main__":
    _main()
