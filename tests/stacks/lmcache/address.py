# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Where LMCache's channels listen."""

import socket


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
