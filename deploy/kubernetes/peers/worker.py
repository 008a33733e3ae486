# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Two pods find each other by their names, peers-0 and peers-1, and the first one sends the second 64 MiB. It says by
which route. Then both stay."""

import os
import signal
import socket

from uccl import directory, p2p

SIZE = 64 << 20


def main() -> None:
    name = os.environ.get("HOSTNAME") or socket.gethostname()
    first = name.endswith("-0")
    with directory.use(os.environ["PEERS"]) as names, p2p.Endpoint(0) as endpoint:
        names.publish(name, endpoint)
        data = bytearray(SIZE)
        if first:
            data[:] = b"\7" * SIZE
            connection = names.lookup(f"{name[:-1]}1", timeout=300).connect(endpoint)
            done = endpoint.send(connection, data)
        else:
            ok, _, _, connection = endpoint.accept(timeout=300)
            done = ok and endpoint.recv(connection, data) and data == b"\7" * SIZE
        if not done:
            raise SystemExit(f"{name}: {p2p.last_error()}")
        route = next(row for row in endpoint.routes(connection) if row["local"] == row["remote"] == "host")
        print(f"{name}: {SIZE >> 20} MiB by {route['transport']}: {route['detail']}", flush=True)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
