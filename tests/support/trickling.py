# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""A server whose answer does not end."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def trickling(first):
    """Its address:port. To the first who connects it sends `first`, then a byte every tenth of a second until the block ends."""
    done = threading.Event()

    def trickle(listener):
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(first)
            while not done.wait(0.1):
                client.sendall(b"#")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=trickle, args=(listener,))
        server.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            done.set()
            server.join()
