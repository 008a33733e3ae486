# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Mooncake's TransferEngine, as serving stacks call it, on this engine (needs NumPy).

    python -m uccl.mooncake install     # `from mooncake.engine import TransferEngine` gives this one
    python -m uccl.mooncake status
    python -m uccl.mooncake uninstall
"""

from .engine import TransferEngine, TransferNotify, TransferOpcode

Read, Write = TransferOpcode.Read, TransferOpcode.Write

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]
