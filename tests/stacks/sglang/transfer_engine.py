# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The class through which SGLang's disaggregation calls Mooncake, in two processes, its engine uccl.mooncake's.

Needs `mooncake` on the path (`python -m uccl.mooncake install`). The rest of SGLang needs a GPU.
"""

import os
from multiprocessing.connection import Connection

import other_process
import torch
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

from uccl.mooncake import TransferEngine

ROUTES = ("auto", "tcp")
_PAGES, _PAGE = 512, 9216


def pages(seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (_PAGES, _PAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def engine(route: str, memory: torch.Tensor) -> MooncakeTransferEngine:
    os.environ["UCCL_P2P_TRANSPORT"] = route
    made = MooncakeTransferEngine("127.0.0.1", gpu_id=0, ib_device='{"0": "mlx5_0"}')
    assert isinstance(made.engine, TransferEngine), made.engine
    assert made.batch_register([memory.data_ptr()], [memory.nbytes]) == 0
    return made


def decode(prefill: Connection) -> None:
    for route in ROUTES:
        cache = torch.zeros(_PAGES, _PAGE, dtype=torch.uint8)
        mine = engine(route, cache)
        prefill.send((mine.get_session_id(), cache.data_ptr()))
        order = other_process.hear(prefill, route)
        assert torch.equal(cache[order], pages(1)), f"{route}: bytes differ"
        assert mine.batch_deregister([cache.data_ptr()]) == 0
        prefill.send("compared")


def main() -> None:
    other, here = other_process.start(decode)
    cache = pages(1)
    order = torch.randperm(_PAGES, generator=torch.Generator().manual_seed(2))
    for route in ROUTES:
        mine = engine(route, cache)
        session, start = other_process.hear(here, route)
        assert mine.send_probe(session) == 0
        sources = [cache.data_ptr() + at * _PAGE for at in range(_PAGES)]
        targets = [start + int(at) * _PAGE for at in order]
        assert mine.batch_transfer_sync(session, sources, targets, [_PAGE] * _PAGES) == 0
        assert mine.transfer_sync(session, sources[0], targets[0], _PAGE) == 0
        assert mine.transfer_sync(session, sources[0], start - 1, 1) < 0
        here.send(order)
        assert other_process.hear(here, route) == "compared"
        assert mine.send_probe("127.0.0.1:1") != 0
        print(f"SGLang's MooncakeTransferEngine, route {route}: {_PAGES} pages of {_PAGE} bytes compared", flush=True)
    other_process.finish(other)


if __name__ == "__main__":
    main()
