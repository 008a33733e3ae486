# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Two-sided transfers: rank 0 sends, rank 1 receives (with --dual both do both).

    torchrun --nproc_per_node=2 benchmark_uccl.py
    torchrun --nnodes=2 --nproc_per_node=1 --node-rank=0 --master_addr=<address> benchmark_uccl.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import report
from ranks import Pair, check, connect_pair, make_tensor, pieces, process_group, route, verify

_SENT = 0xA5


def _operations(arguments: argparse.Namespace, pair: Pair, size: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """What one iteration of this rank does, and the check of what it received."""
    endpoint = pair.endpoint
    out = make_tensor(arguments, size, _SENT)
    into = make_tensor(arguments, size, 0)

    def two_sided(name: str, connection: int, tensor: object) -> Callable[[], int]:
        """A call that starts a send or a receive and gives its transfer id."""
        if arguments.ipc:
            call = getattr(endpoint, f"{name}_ipc_async")
            return lambda: _started(call(connection, tensor.data_ptr(), size))
        mr_id = pair.region(tensor)
        if arguments.num_iovs == 1:
            call = getattr(endpoint, f"{name}_async")
            return lambda: _started(call(connection, mr_id, tensor.data_ptr(), size))
        pointers, sizes = pieces(tensor, arguments.num_iovs)
        regions = [mr_id] * arguments.num_iovs
        call = getattr(endpoint, f"{name}v_async")
        return lambda: _started(call(connection, regions, pointers, sizes, arguments.num_iovs))

    starts = []
    if pair.outgoing is not None:
        starts.append(two_sided("send", pair.outgoing, out))
    if pair.incoming is not None:
        starts.append(two_sided("recv", pair.incoming, into))

    def started() -> None:
        ids = [start() for start in starts]
        for transfer in ids:
            if arguments.async_api:
                _poll(endpoint, transfer)
            else:
                endpoint.wait(transfer)

    def received() -> None:
        verify(out, _SENT)  # also keeps it: the engine has addresses only
        if pair.incoming is not None:
            verify(into, _SENT)

    return started, received


def _started(result: tuple[bool, int]) -> int:
    check(result[0])
    return result[1]


def _poll(endpoint: object, transfer: int) -> None:
    done = False
    while not done:
        ok, done = endpoint.poll_async(transfer)
        check(ok)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    report.add_arguments(parser)
    parser.add_argument("--dual", action="store_true", help="both directions at once")
    parser.add_argument("--ipc", action="store_true", help="both ranks on one host, without registration")
    parser.add_argument("--num-iovs", type=int, default=1, help="pieces of one operation")
    parser.add_argument("--async-api", action="store_true", help="poll instead of waiting")
    arguments = parser.parse_args()
    with process_group():
        pair = connect_pair(arguments, dual=arguments.dual, local=arguments.ipc)
        settings = {
            "role": ("client", "server")[pair.rank],
            "device": arguments.device,
            "dual": arguments.dual,
            "route": route(pair.endpoint, pair.connection, arguments.device),
        }
        if pair.rank == 0:
            report.announce("uccl send/recv", arguments.device, settings["route"])
        rows = report.Report("uccl send/recv", settings)
        for size in report.progress(arguments.sizes, "send/recv", arguments.quiet or pair.rank != 0):
            operation, received = _operations(arguments, pair, size)
            rows.add(report.measure(size, arguments.num_iovs, arguments.iters, operation))
            received()
        if pair.rank == 0:
            rows.finish(arguments)


if __name__ == "__main__":
    main()
