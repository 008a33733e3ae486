# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""NCCL net plugins: the checks of ``tcpx discover``, which is asked where a plugin is used or anything of
GPUDirect-TCPX or FasTrak is there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from uccl import files
from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding
from uccl.doctor.machine import plugin_name

_SECTION = "net plugin"
_LEVELS = {"good": OK, "advice": NOTE, "bad": PROBLEM}
_VARIABLES = ("NCCL_GPUDIRECTTCPX_", "NCCL_TCPX_", "NCCL_DYNAMIC_CHUNK_SIZE", "NCCL_FASTRAK_")
_PLUGINS = ("GPUDirectTCPX", "FasTrak")
_SOCKETS = Path("/run/tcpx")  # of RxDM
_SECONDS = 60


def _is_there(named: str) -> bool:
    variables = any(variable.startswith(_VARIABLES) for variable in os.environ)
    return variables or bool(named) or _SOCKETS.is_dir() or plugin_name().startswith(_PLUGINS)


def examine() -> Iterator[Finding]:
    """Nothing where nothing of it is there."""
    named = os.environ.get("UCCL_P2P_NCCL_NET_PLUGIN", "")
    if named == "none" or not _is_there(named):
        return
    try:
        done = subprocess.run(
            [files.program("tcpx"), "discover", "--json", "--plugin", named], stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=_SECONDS, check=False,
        )  # fmt: skip
        checks = json.loads(done.stdout)["checks"]
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        yield Finding(_SECTION, "tcpx discover", f"{error}", PROBLEM, "run `tcpx discover` by itself")
        return
    for check in checks:
        yield Finding(_SECTION, check["subject"], check["found"], _LEVELS[check["verdict"]], check["advice"])
