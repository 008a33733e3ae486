# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Transfers between two NIXL agents, by any of NIXL's backends.

    python benchmark_nixl.py --role server
    python benchmark_nixl.py --role client --remote-ip ADDRESS --sizes 4K,1M,64M
    python benchmark_nixl.py --role client --remote-ip ADDRESS --model llama-3.1-70b --tp 8 --isl 4096

The client says what to do; both sides must name the same --backend. Every byte is checked after each row.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from typing import Any

import report
from nixl_pair import BACKENDS, Side, open_agent
from nixl_workloads import MODELS, Layout, blocks_of_size, kv_blocks

from uccl.utils import create_socket_and_connect, recv_obj, send_obj

_PATIENCE = 120.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=("server", "client"), required=True)
    parser.add_argument("--remote-ip", default="127.0.0.1", help="the server's address")
    parser.add_argument("--port", type=int, default=9000, help="of the server, for what the two tell each other")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="tcpx", help="of NIXL; default: %(default)s")
    parser.add_argument("--op-type", choices=("read", "write"), default="write")
    parser.add_argument("--num-kvblocks", type=int, default=1, help="blocks that each size is cut into")
    parser.add_argument("--shuffle", action="store_true", help="blocks lie in another order on each side")
    parser.add_argument("--dual", action="store_true", help="the server transfers the other way meanwhile")
    parser.add_argument("--new-requests", action="store_true", help="make a request for each transfer (KV: always)")
    parser.add_argument("--model", choices=sorted(MODELS), help="a KV cache's blocks in place of --sizes")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel ranks; one rank's share is moved")
    parser.add_argument("--isl", type=int, default=4096, help="tokens whose cache is moved")
    parser.add_argument("--page", type=int, default=None, help="tokens of a block; the model's usual number")
    report.add_arguments(parser)
    return parser.parse_args()


def _layouts(arguments: argparse.Namespace) -> list[Layout]:
    if arguments.model:
        return [kv_blocks(MODELS[arguments.model], arguments.tp, arguments.isl, arguments.page)]
    return [blocks_of_size(size, arguments.num_kvblocks, arguments.shuffle) for size in arguments.sizes]


class _Meanwhile:
    """Transfers of the server's own while the client measures."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._side.transfer()
        except Exception as error:  # noqa: BLE001 - raised by stop()
            self._error = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE)
        if self._error:
            raise self._error


def serve(arguments: argparse.Namespace) -> None:
    """One client, all its rows."""
    family = socket.AF_INET6 if ":" in arguments.remote_ip else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", arguments.port))
        listener.listen()
        print(f"listening on port {listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
    agent = open_agent("server", arguments.backend)
    with connection:
        while (order := recv_obj(connection)) is not None:
            side = Side(agent, arguments, Layout(**order["layout"]), there=True)
            side.prepare_data(order["op"], order["dual"])
            send_obj(connection, side.describe())
            send_obj(connection, agent.get_agent_metadata())
            peer = recv_obj(connection)
            metadata = recv_obj(connection)
            meanwhile = None
            if order["dual"]:  # else the one that moves nothing loads nobody, as with vLLM
                side.meet(metadata, peer)
                side.make_own_region(peer)
                meanwhile = _Meanwhile(side)
            send_obj(connection, "ready")
            recv_obj(connection)  # the client is through
            if meanwhile:
                meanwhile.stop()
            send_obj(connection, side.wrong_bytes())
            recv_obj(connection)
            side.close()


def _costs(side: Side) -> dict[str, float]:
    """Microseconds: of preparing the lists once; of the first transfer; medians of the parts of one."""
    parts = {"make_us": side.make_seconds, "post_us": side.post_seconds, "wait_us": side.wait_seconds}
    first = sum(times[0] for times in parts.values())
    medians = {name: statistics.median(times) * 1e6 for name, times in parts.items()}
    return {"prepare_us": side.prepare_seconds * 1e6, "first_us": first * 1e6} | medians


def measure(arguments: argparse.Namespace, agent: Any, connection: socket.socket, layout: Layout) -> tuple:
    """One row, and what its parts cost."""
    op = arguments.op_type
    send_obj(connection, {"layout": layout.to_json(), "op": op, "dual": arguments.dual})
    peer = recv_obj(connection)
    metadata = recv_obj(connection)
    side = Side(agent, arguments, layout, there=False)
    side.prepare_data(op, arguments.dual)
    send_obj(connection, side.describe())
    send_obj(connection, agent.get_agent_metadata())
    side.meet(metadata, peer)
    if recv_obj(connection) != "ready":
        raise RuntimeError("the server is not ready")
    side.always_new = arguments.new_requests or arguments.model is not None
    row = report.measure(layout.bytes, layout.count, arguments.iters, side.transfer)
    costs = _costs(side)
    send_obj(connection, "through")
    wrong = recv_obj(connection) + side.wrong_bytes()
    send_obj(connection, "next")
    side.close()
    if wrong:
        raise RuntimeError(f"{wrong} of {layout.bytes} bytes are wrong")
    return row, costs


def run(arguments: argparse.Namespace) -> None:
    """The client."""
    connection = create_socket_and_connect(arguments.remote_ip, arguments.port, timeout=_PATIENCE)
    agent = open_agent("client", arguments.backend)
    settings = {"backend": arguments.backend, "op": arguments.op_type, "device": arguments.device, "dual": arguments.dual}
    if arguments.model:
        settings |= {"model": arguments.model, "tp": arguments.tp, "isl": arguments.isl}
    rows = report.Report("nixl", settings)
    costs = []
    for layout in report.progress(_layouts(arguments), "nixl", arguments.quiet):
        row, cost = measure(arguments, agent, connection, layout)
        rows.add(row)
        costs.append({"size": row.size, "blocks": row.iovs} | cost)
    send_obj(connection, None)
    rows.extra["requests"] = costs
    rows.finish(arguments)
    for cost in costs:
        print(
            f"{report.size_text(cost['size'])} in {cost['blocks']} blocks: lists prepared in {cost['prepare_us']:.1f} us; "
            f"first transfer {cost['first_us']:.1f} us; request made in {cost['make_us']:.1f} us, "
            f"posted in {cost['post_us']:.1f} us, waited for {cost['wait_us']:.1f} us (medians)"
        )


def main() -> None:
    arguments = _arguments()
    start = time.monotonic()
    report.announce(f"NIXL {BACKENDS[arguments.backend]}", arguments.device, "as the backend chooses")
    (serve if arguments.role == "server" else run)(arguments)
    print(f"{arguments.role}: done, every byte verified ({time.monotonic() - start:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
