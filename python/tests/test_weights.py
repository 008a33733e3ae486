# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.weights: what the C++ tests do not see, which is tensors of Python."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from uccl import p2p
from uccl.weights import Publisher, Shard, Subscriber

HERE = {"listen_address": "127.0.0.1"}


@pytest.fixture
def publisher():
    with Publisher(**HERE) as made:
        yield made


def subscriber_of(publisher, tensors, **options):
    return Subscriber(publisher.place, tensors, **HERE, **options)


def test_a_version_is_staged_beside_and_committed(publisher):
    source = {"a": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4), "b": np.float32([1.5, 2.5]), "c": torch.tensor(7)}
    target = {"a": torch.zeros(3, 4, dtype=torch.bfloat16), "b": torch.zeros(2), "c": np.zeros((), np.int64)}
    publisher.publish(1, source)
    with subscriber_of(publisher, target) as subscriber:
        assert subscriber.wait_version(timeout=30) == 1
        told = []
        done = subscriber.stage(1, timeout=30, progress=told.append)
        assert done.bytes == done.total_bytes == done.publisher_bytes == 24 + 8 + 8
        assert told
        assert not target["a"].any()
        assert subscriber.version is None
        assert subscriber.commit() == subscriber.version == 1
        assert torch.equal(target["a"], source["a"])
        assert target["b"].tolist() == [1.5, 2.5]
        assert target["c"] == 7
        publisher.wait_copies(1, 1, timeout=30)
        assert publisher.copies(1) == 1


def test_sides_cut_differently(publisher):
    whole = torch.arange(48, dtype=torch.int32).reshape(6, 8)
    publisher.publish(1, {"w": [Shard(whole[:2], (0, 0), (6, 8)), Shard(whole[2:], (2, 0), (6, 8))]})
    part = torch.zeros(6, 3, dtype=torch.int32)
    with subscriber_of(publisher, {"w": Shard(part, (0, 5), (6, 8))}) as subscriber:
        subscriber.stage(1, timeout=30)
        subscriber.commit()
    assert torch.equal(part, whole[:, 5:])


def test_versions_follow_one_another_and_in_place_needs_no_copy(publisher):
    target = np.zeros(1000, np.int16)
    with subscriber_of(publisher, {"w": target}) as subscriber:
        for version in (1, 2, 3, 4):
            publisher.publish(version, {"w": np.full(1000, version, np.int16)}, copy=True)
            subscriber.stage(version, in_place=version >= 3, timeout=30)
            assert (target == (version if version >= 3 else version - 1)).all()
            subscriber.commit()
            assert (target == version).all()
            publisher.withdraw(version)


def test_a_subscriber_receives_into_others(publisher):
    first, second = np.zeros(64, np.uint8), np.zeros((3, 2), np.float32)
    publisher.publish(1, {"a": np.full(64, 5, np.uint8)})
    with subscriber_of(publisher, {"a": first}) as subscriber:
        subscriber.stage(1, in_place=True, timeout=30)
        subscriber.commit()
        subscriber.receive_into({"b": second})
        assert subscriber.version is None
        publisher.publish(2, {"b": np.ones((3, 2), np.float32)})
        subscriber.stage(2, timeout=30)
        assert not second.any()
        subscriber.commit()
    assert (first == 5).all()
    assert (second == 1).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_deltas_change_what_is_staged(publisher, in_place):
    draw = np.random.default_rng(1)
    source = {"a": torch.randn(300, 400, dtype=torch.bfloat16), "b": draw.random(999, np.float32)}
    target = {"a": torch.zeros(300, 400, dtype=torch.bfloat16), "b": np.zeros(999, np.float32)}
    publisher.publish(1, source, copy=True)
    with subscriber_of(publisher, target) as subscriber:
        subscriber.stage(1, in_place=in_place, timeout=30)
        subscriber.commit()
        for version in (2, 3):
            source["a"].view(-1)[torch.randperm(120000)[:1200]] += 1
            source["b"][::100] += 1
            publisher.publish(version, source, base=version - 1, copy=True)
            done = subscriber.stage(version, in_place=in_place, timeout=30)
            assert (done.from_deltas, done.no_delta) == (done.bytes, "")
            assert 0 < done.delta_bytes < 5000
            assert torch.equal(target["a"], source["a"]) == in_place
            subscriber.commit()
            assert torch.equal(target["a"], source["a"])
            assert (target["b"] == source["b"]).all()
        with pytest.raises(p2p.NotFound, match="version 9"):
            publisher.publish(4, source, base=9)
        publisher.publish(4, source, base=1, copy=True)
        done = subscriber.stage(4, timeout=30)
        assert done.from_deltas == 0
        assert "version 1" in done.no_delta


def test_read_only_arrays_are_not_staged_over(publisher):
    publisher.publish(1, {"w": np.ones(64, np.uint8)})
    target = np.frombuffer(bytes(64), np.uint8)
    with subscriber_of(publisher, {"w": target}) as subscriber, pytest.raises(ValueError, match="read-only"):
        subscriber.stage(1, in_place=True, timeout=30)
    assert not target.any()


def test_who_gives_up_a_stage_as_the_last_bytes_come_may_stage_it_again(publisher):
    publisher.publish(1, {"w": np.full(64, 3, np.uint8)})
    target = np.zeros(64, np.uint8)

    def give_up(progress):
        if progress.bytes == progress.total_bytes:
            publisher.wait_copies(1, 1, timeout=30)
            raise ZeroDivisionError

    with subscriber_of(publisher, {"w": target}) as subscriber:
        with pytest.raises(ZeroDivisionError):
            subscriber.stage(1, timeout=30, progress=give_up)
        with pytest.raises(p2p.NotFound):
            subscriber.commit()
        subscriber.stage(1, timeout=30)
        subscriber.commit()
    assert (target == 3).all()


def test_an_interrupted_commit_is_ended_by_the_next(publisher, monkeypatch):
    publisher.publish(1, {"a": np.full(64, 1, np.uint8), "b": np.full(64, 2, np.uint8)})
    target = {"a": np.zeros(64, np.uint8), "b": np.zeros(64, np.uint8)}
    copy = np.copyto

    def copy_interrupted(into, what):
        if into is target["b"]:
            raise KeyboardInterrupt
        copy(into, what)

    with subscriber_of(publisher, target) as subscriber:
        subscriber.stage(1, timeout=30)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(np, "copyto", copy_interrupted)
            subscriber.commit()
        assert target["a"].all()
        assert not target["b"].any()
        assert subscriber.version is None
        assert subscriber.commit() == subscriber.version == 1
        assert (target["b"] == 2).all()
        with pytest.raises(p2p.NotFound):
            subscriber.commit()


def test_close_ends_a_stage_under_way(publisher):
    subscriber = subscriber_of(publisher, {"w": np.zeros(64, np.uint8)})
    waits, failed = threading.Event(), []

    def stage():
        with pytest.raises(Exception, match="ended it") as raised:
            subscriber.stage(7, timeout=None, progress=lambda _: waits.set())
        failed.append(raised.value)

    thread = threading.Thread(target=stage, daemon=True)
    thread.start()
    assert waits.wait(30)
    subscriber.close()
    thread.join(30)
    assert failed


def test_a_forked_child_is_told_so(publisher):
    child = os.fork()
    if child == 0:
        try:
            publisher.copies(1)
        except Exception as error:  # noqa: BLE001 - whatever else would be wrong
            publisher.close()
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert publisher.copies(1) == 0


def test_tensors_with_gaps_are_copied(publisher):
    publisher.publish(1, {"w": torch.arange(12).reshape(3, 4).t()})
    target = torch.zeros(3, 4, dtype=torch.int64).t()
    with subscriber_of(publisher, {"w": target}) as subscriber:
        subscriber.stage(1, timeout=30)
        subscriber.commit()
        assert torch.equal(target, torch.arange(12).reshape(3, 4).t())
        with pytest.raises(ValueError, match="in place"):
            subscriber.stage(2, in_place=True)


def test_a_late_one_takes_from_another_after_the_publisher_has_left():
    with Publisher(**HERE) as publisher:
        publisher.publish(1, {"w": np.arange(1000)})
        first = subscriber_of(publisher, {"w": np.zeros(1000, np.int64)})
        first.stage(1, timeout=30)
    gc.collect()
    target = np.zeros(1000, np.int64)
    with first, Subscriber([first.place], {"w": target}, **HERE) as second:
        assert second.stage(1, timeout=30).publisher_bytes == 0
        second.commit()
    assert (target == np.arange(1000)).all()


def test_what_does_not_meet_is_named(publisher):
    publisher.publish(1, {"w": np.zeros((2, 3), np.float32)})
    with pytest.raises(p2p.InvalidArgument, match="published already"):
        publisher.publish(1, {"w": np.zeros((2, 3), np.float32)})
    for tensors, cause in (({"v": np.zeros((2, 3), np.float32)}, "nobody owns 'v'"),
                           ({"w": np.zeros((3, 2), np.float32)}, "its shape is"),
                           ({"w": np.zeros((2, 3), np.int32)}, "float32")):
        with subscriber_of(publisher, tensors) as subscriber, pytest.raises(p2p.InvalidArgument, match=cause):
            subscriber.stage(1, timeout=30)
    with pytest.raises(TypeError, match="'w'"):
        publisher.publish(2, {"w": 5})
    with pytest.raises(p2p.NotFound):
        publisher.withdraw(9)


def test_waits_end_in_time_and_closed_ones_say_so(publisher):
    subscriber = subscriber_of(publisher, {"w": np.zeros(3)})
    with pytest.raises(p2p.TimedOut):
        subscriber.stage(1, timeout=0.1)
    with pytest.raises(p2p.TimedOut):
        subscriber.wait_version(timeout=0.1)
    with pytest.raises(p2p.TimedOut):
        publisher.wait_copies(1, 1, timeout=0.1)
    with pytest.raises(p2p.NotFound):
        subscriber.commit()
    subscriber.close()
    subscriber.close()
    with pytest.raises(p2p.NotFound, match="closed"):
        subscriber.stage(1)


def test_the_demo_runs():
    words = [sys.executable, "-m", "uccl.weights", "demo", "--subscribers", "2", "--mib", "8"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 2
