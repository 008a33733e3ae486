# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Versions that several publishers hold together."""

import signal
import subprocess
import sys
import threading

import pytest
import torch

from uccl import p2p
from uccl.weights import Part, Publisher, RanksSubscriber, Shard, Subscriber

HERE = {"listen_address": "127.0.0.1"}
WHOLE = torch.arange(8 * 6, dtype=torch.float32).reshape(8, 6)

# FSDP has dimension 0, tensor parallelism dimension 1; all have "norm". Torch is imported once, for four ranks.
RANKS = """
import os, sys, torch, torch.distributed as dist
from datetime import timedelta
from uccl.weights import Shard, reshard

def run(rank, count, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=50))
    whole = torch.arange(8 * 12, dtype=torch.float32).reshape(8, 12).to(torch.bfloat16)
    norm = torch.arange(5.0)
    held = {"w": Shard(whole[2 * rank : 2 * rank + 2].clone(), (2 * rank, 0), (8, 12)), "norm": norm}
    mine, copy = torch.zeros(8, 3, dtype=torch.bfloat16), torch.zeros(5)
    wanted = {"w": Shard(mine, (0, 3 * rank), (8, 12)), "norm": copy}
    reshard(held, wanted, timeout=50, listen_address="127.0.0.1")
    assert torch.equal(mine, whole[:, 3 * rank : 3 * rank + 3]) and torch.equal(copy, norm)
    mine.zero_()
    try:
        reshard(held if rank else {}, wanted, timeout=50, listen_address="127.0.0.1")
    except RuntimeError as error:
        assert "resharding of weights: rank 0 of the group: ValueError: tensor 'w' is held in part by no rank" in str(error), error
    else:
        raise AssertionError("what nobody holds came")
    assert not mine.any()
    dist.barrier()

children = []
for rank in range(4):
    child = os.fork()
    if child == 0:
        try:
            run(rank, 4, sys.argv[1])
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_four_ranks_of_fsdp_become_four_of_tensor_parallelism(tmp_path):
    done = subprocess.run([sys.executable, "-c", RANKS, tmp_path / "store"], capture_output=True, text=True, timeout=55, check=False)
    assert done.stdout.strip() == "[0, 0, 0, 0]", done.stderr


def halves(publishers):
    """Each publisher's tensors, of rows 0 to 3 and 4 to 7, and their parts."""
    tensors = [{"w": Shard(WHOLE[at : at + 4].clone(), (at, 0), (8, 6))} for at in (0, 4)]
    parts = [one.part(held, rank, 2) for rank, (one, held) in enumerate(zip(publishers, tensors, strict=True))]
    return tensors, parts


@pytest.fixture
def publishers():
    with Publisher(**HERE) as one, Publisher(**HERE) as other:
        yield [one, other]


def test_a_version_is_whole_once_all_ranks_have_published_it(publishers):
    tensors, parts = halves(publishers)
    target = torch.zeros(6, 5)
    with RanksSubscriber(parts, {"w": Shard(target, (1, 1), (8, 6))}, **HERE) as subscriber:
        publishers[0].publish(1, tensors[0])
        with pytest.raises(TimeoutError, match="rank 1 of 2"):
            subscriber.wait_version(timeout=0.2)
        with pytest.raises(TimeoutError, match="rank 1 of 2"):
            subscriber.stage(1, timeout=0.2)
        with pytest.raises(p2p.NotFound, match="staged"):
            subscriber.commit()
        publishers[1].publish(1, tensors[1])
        assert subscriber.wait_version(timeout=30) == 1
        rows = subscriber.stage(1, timeout=30)
        assert sum(row.bytes for row in rows.values()) == target.nbytes
        assert subscriber.version is None
        assert not target.any()
        assert subscriber.commit() == subscriber.version == 1
        assert torch.equal(target, WHOLE[1:7, 1:6])
        for one, held in zip(publishers, tensors, strict=True):
            held["w"].tensor.mul_(2)
            one.publish(2, held)
        publishers[1].close()  # a rank that has gone
        with pytest.raises(p2p.Error, match="rank 1 of 2"):
            subscriber.stage(2, timeout=1)
        assert torch.equal(target, WHOLE[1:7, 1:6])


def test_who_interrupts_a_stage_ends_it_at_all_ranks(publishers):
    tensors, parts = halves(publishers)
    target = torch.zeros(8, 6)

    def interrupt():
        publishers[0].wait_copies(1, 1, 60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with RanksSubscriber(parts, {"w": target}, **HERE) as subscriber:
        publishers[0].publish(1, tensors[0])
        thread = threading.Thread(target=interrupt)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                subscriber.stage(1, timeout=100)  # rank 1 has published nothing
        finally:
            thread.join()
            signal.signal(signal.SIGINT, before)
        publishers[1].publish(1, tensors[1])
        subscriber.stage(1, timeout=60)
        assert subscriber.commit() == 1
        assert torch.equal(target, WHOLE)


def test_who_interrupts_the_start_of_a_stage_ends_it_at_all_ranks(publishers, monkeypatch):
    tensors, parts = halves(publishers)
    target = torch.zeros(8, 6)
    publishers[0].publish(1, tensors[0])
    start = threading.Thread.start

    def start_interrupted(thread):  # a signal comes while the second thread is waited for, which runs already
        start(thread)
        if thread.name.startswith("ThreadPoolExecutor") and thread.name.endswith("_1"):
            raise KeyboardInterrupt

    with RanksSubscriber(parts, {"w": target}, **HERE) as subscriber:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(threading.Thread, "start", start_interrupted)
            subscriber.stage(1, timeout=100)
        publishers[1].publish(1, tensors[1])
        subscriber.stage(1, timeout=60)
        assert subscriber.commit() == 1
        assert torch.equal(target, WHOLE)


def test_an_interrupted_commit_is_ended_by_the_next(publishers, monkeypatch):
    tensors, parts = halves(publishers)
    target = torch.zeros(8, 6)
    for one, held in zip(publishers, tensors, strict=True):
        one.publish(1, held)
    commit, left = Subscriber.commit, [1]

    def commit_interrupted(subscriber):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return commit(subscriber)

    with RanksSubscriber(parts, {"w": target}, **HERE) as subscriber:
        subscriber.stage(1, timeout=60)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Subscriber, "commit", commit_interrupted)
            subscriber.commit()
        assert subscriber.version is None
        assert not torch.equal(target, WHOLE)
        assert subscriber.commit() == subscriber.version == 1
        assert torch.equal(target, WHOLE)
        with pytest.raises(p2p.NotFound):
            subscriber.commit()


def test_parts_that_do_not_fill_the_tensors_are_refused(publishers):
    _, parts = halves(publishers)
    target = {"w": torch.zeros(8, 6)}
    other = Part(parts[1].place, 1, 2, (("w", (3, 0), (5, 6), (8, 6)),))
    for given, why in (
        (parts[:1], r"of 2, \[1\] are missing"),
        ([parts[0], other], "overlap"),
        ([parts[0], Part(parts[1].place, 1, 2, ())], "in part by no rank"),
    ):
        with pytest.raises(ValueError, match=why):
            RanksSubscriber(given, target, **HERE)
    for wanted, why in (({"w": torch.zeros(6, 8)}, "has the shape"), ({"v": torch.zeros(1)}, "is held by no rank")):
        with pytest.raises(ValueError, match=why):
            RanksSubscriber(parts, wanted, **HERE)
