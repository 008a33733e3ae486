# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The NIXL backend TCPX: where it lies, and how it gets beside the plugins of an installed NIXL.

    python -m uccl.nixl install     # link it into each installed NIXL
    python -m uccl.nixl install --as UCCL   # for programs that ask for the backend UCCL
    python -m uccl.nixl status
    python -m uccl.nixl uninstall
"""

from .folders import BACKEND, NAME, Place, install, places, plugin, state, uninstall

__all__ = ["BACKEND", "NAME", "Place", "install", "places", "plugin", "state", "uninstall"]
