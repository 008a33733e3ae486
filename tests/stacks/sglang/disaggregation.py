# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""SGLang's disaggregation with its backend `mooncake`, its TransferEngine uccl.mooncake's: the managers, sender and
receiver of a prefill and of a decode process, and the bootstrap server between them, with caches in host memory. Models
and schedulers, which need a GPU, are left out.

Needs `mooncake` on the path (`python -m uccl.mooncake install`).
"""

import os
import signal
import socket
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import other_process
import torch
from sglang.srt.disaggregation.base.conn import KVArgs, KVPoll
from sglang.srt.disaggregation.mooncake.conn import (
    MooncakeKVBootstrapServer,
    MooncakeKVManager,
    MooncakeKVReceiver,
    MooncakeKVSender,
)
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import init_mooncake_transfer_engine
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
from sglang.srt.server_args import ServerArgs

from uccl.mooncake import TransferEngine

_LAYERS, _PAGES, _PAGE, _AUX = 4, 256, 9216, 512
_SECONDS = 60


def caches(seed: int) -> list[torch.Tensor]:
    """The pages of K of all layers, then those of V."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (_PAGES, _PAGE), dtype=torch.uint8, generator=generator) for _ in range(2 * _LAYERS)]


def described(kv: list[torch.Tensor], aux: torch.Tensor) -> KVArgs:
    args = KVArgs()
    args.engine_rank = args.gpu_id = args.pp_rank = args.system_dp_rank = args.prefill_start_layer = 0
    args.kv_data_ptrs, args.kv_data_lens = [one.data_ptr() for one in kv], [one.nbytes for one in kv]
    args.kv_item_lens, args.kv_layer_ids = [_PAGE] * len(kv), []
    args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens = [aux.data_ptr()], [aux.nbytes], [_AUX]
    args.state_types, args.state_data_ptrs, args.state_data_lens, args.state_item_lens = [], [], [], []
    args.state_layer_ids, args.state_dim_per_tensor = [], []
    args.kv_cache_dtype_str, args.ib_device, args.page_size = "bfloat16", "", 1
    args.kv_head_num = args.total_kv_head_num = 8
    args.prefill_end_layer, args.mla_compression_ratios = _LAYERS, None
    return args


def manager(mode: DisaggregationMode, port: int, kv: list[torch.Tensor], aux: torch.Tensor) -> Any:
    server = ServerArgs(
        model_path="none", device="cpu", host="127.0.0.1", disaggregation_mode=mode.value, disaggregation_bootstrap_port=port
    )
    publish(server, role="test", ranks=SpawnRanks(world_rank=0, dp_rank=None))
    get_parallel().override_permanently(pp_group=None)  # there is one stage
    engine = init_mooncake_transfer_engine("127.0.0.1", gpu_id=0, ib_device=None)
    assert isinstance(engine.engine, TransferEngine), engine.engine
    return MooncakeKVManager(described(kv, aux), mode, server)


def until(side: Any, wanted: int, what: str) -> None:
    start = time.monotonic()
    while (state := side.poll()) != wanted:
        if state == KVPoll.Failed:
            side.failure_exception()
        assert time.monotonic() - start < _SECONDS, f"{what}: state {state}"
        time.sleep(0.001)


def asked(mine: Any, port: int, room: int, pages: np.ndarray) -> MooncakeKVReceiver:
    """Decode's request for pages, into these of its own."""
    address = f"127.0.0.1:{port}"
    assert mine.try_ensure_parallel_info(address)
    receiver = MooncakeKVReceiver(mine, address, room)
    receiver.init(0)
    until(receiver, KVPoll.WaitingForInput, "the prefill process is found")
    receiver.send_metadata(pages, aux_index=room)
    return receiver


def decode(prefill: Connection) -> None:
    port = other_process.hear(prefill, "a port")
    kv, aux = [torch.zeros_like(one) for one in caches(1)], torch.zeros(8, _AUX, dtype=torch.uint8)
    mine = manager(DisaggregationMode.DECODE, port, kv, aux)
    for room in range(3):
        source, target = other_process.hear(prefill, f"room {room}")
        until(asked(mine, port, room, target), KVPoll.Success, f"room {room}")
        for layer, (got, want) in enumerate(zip(kv, caches(1), strict=True)):
            assert torch.equal(got[target.tolist()], want[source.tolist()]), f"room {room}: layer {layer} differs"
        assert aux[room].unique().tolist() == [room + 1]
        prefill.send("compared")
    asked(mine, port, 3, other_process.hear(prefill, "room 3")[1])
    prefill.send(os.getpid())
    time.sleep(_SECONDS)  # until it is killed


def sender_of(mine: Any, port: int, room: int, count: int) -> MooncakeKVSender:
    sender = MooncakeKVSender(mine, f"127.0.0.1:{port}", room)
    sender.init(count, aux_index=room)
    return sender


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    other, here = other_process.start(decode)
    server = MooncakeKVBootstrapServer("127.0.0.1", port)
    kv, aux = caches(1), torch.arange(1, 9, dtype=torch.uint8)[:, None].repeat(1, _AUX)
    mine = manager(DisaggregationMode.PREFILL, port, kv, aux)
    here.send(port)
    random = np.random.default_rng(1)
    for room in range(4):
        source, target = (random.permutation(_PAGES)[: 64 * (room + 1)].astype(np.int32) for _ in range(2))
        here.send((source, target))
        sender = sender_of(mine, port, room, len(source))
        until(sender, KVPoll.WaitingForInput, f"room {room}: decode's pages")
        if room == 3:
            os.kill(other_process.hear(here, "room 3"), signal.SIGKILL)
            other.join(_SECONDS)
            start = time.monotonic()
            sender.send(source)
            until(sender, KVPoll.Failed, "a decode process that was killed")
            print(f"SGLang's disaggregation: decode killed: failed after {time.monotonic() - start:.1f} s", flush=True)
            break
        half = len(source) // 2  # in two chunks, as a long prompt is sent
        sender.send(source[:half])
        sender.send(source[half:])
        until(sender, KVPoll.Success, f"room {room}")
        assert other_process.hear(here, f"room {room}") == "compared"
        size = len(source) * _PAGE * len(kv)
        print(f"SGLang's disaggregation, room {room}: {len(source)} pages of {2 * _LAYERS} caches, {size} bytes, compared", flush=True)
    server.close()
    os._exit(0)  # SGLang's threads do not end


if __name__ == "__main__":
    main()
