# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.weights with tensors of GPUs; skipped where there is no GPU."""

import multiprocessing

import numpy as np
import pytest

from uccl.weights import Publisher, Shard, Subscriber

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.timeout(180),  # the other process imports torch, too
]
FAR = 1 if torch.cuda.device_count() > 1 else 0
HERE = {"listen_address": "127.0.0.1"}
ROWS, COLUMNS = 1500, 1003


def matrix(version, device):
    return (torch.arange(ROWS * COLUMNS, dtype=torch.int32, device=device) * 7 + version).reshape(ROWS, COLUMNS)


def same(tensor, version, columns=slice(None)):
    return torch.equal(tensor.cpu(), matrix(version, "cpu")[:, columns])


@pytest.mark.parametrize("source", ["cpu", "cuda:0"])
@pytest.mark.parametrize("target", ["cpu", f"cuda:{FAR}"])
def test_any_memory_to_any(source, target):
    with Publisher(**HERE) as publisher:
        into = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device=target)
        with Subscriber(publisher.place, {"w": into}, **HERE) as subscriber:
            for version in (1, 2):
                publisher.publish(version, {"w": matrix(version, source)})
                subscriber.stage(version, timeout=60, in_place=version == 2)
                assert subscriber.commit() == version
                assert same(into, version)


def test_columns_and_kinds_mixed_in_one_version():
    """A strided part of one matrix, tensors on both kinds of memory, and one with gaps, which is copied."""
    left, odd = slice(0, 501), torch.arange(999, dtype=torch.uint8)
    with Publisher(**HERE) as publisher:
        tensors = {"w": matrix(1, "cuda:0"), "host": odd, "gaps": matrix(1, "cuda:0").t(), "array": np.arange(77)}
        publisher.publish(1, tensors)
        part = torch.zeros(ROWS, 501, dtype=torch.int32, device=f"cuda:{FAR}")
        gpu = torch.zeros(999, dtype=torch.uint8, device=f"cuda:{FAR}")
        gaps = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device="cuda:0").t()
        array = np.zeros(77, np.int64)
        wanted = {"w": Shard(part, (0, 0), (ROWS, COLUMNS)), "host": gpu, "gaps": gaps, "array": array}
        with Subscriber(publisher.place, wanted, chunk_bytes=65536, **HERE) as subscriber:
            subscriber.stage(1, timeout=60)
            assert not part.any(), "it was staged beside"
            subscriber.commit()
            assert same(part, 1, left)
            assert torch.equal(gpu.cpu(), odd)
            assert same(gaps.t(), 1)
            assert (array == np.arange(77)).all()
            with pytest.raises(ValueError, match="in place"):
                subscriber.stage(2, in_place=True)


def test_publish_waits_for_the_current_stream():
    with Publisher(**HERE) as publisher:
        tensor = torch.zeros(8 << 20, dtype=torch.int32, device="cuda:0")
        into = torch.zeros_like(tensor, device=f"cuda:{FAR}")
        with torch.cuda.stream(torch.cuda.Stream(0)):
            torch.cuda._sleep(200_000_000)
            tensor.fill_(5)
            publisher.publish(1, {"w": tensor})
        with Subscriber(publisher.place, {"w": into}, **HERE) as subscriber:
            assert subscriber.stage(1, timeout=60).wrong_digests == 0
            subscriber.commit()
            assert (into == 5).all()


def relay(place, pipe):
    """A process between the publisher and the next one."""
    into = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device=f"cuda:{FAR}")
    with Subscriber(place, {"w": into}, **HERE) as subscriber:
        subscriber.stage(1, timeout=60)
        subscriber.commit()
        pipe.send((subscriber.place, same(into, 1)))
        pipe.recv()


def test_a_relay_gives_on_from_its_gpu():
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    with Publisher(**HERE) as publisher:
        publisher.publish(1, {"w": matrix(1, "cuda:0")})
        process = spawn.Process(target=relay, args=(publisher.place, theirs), daemon=True)
        process.start()
        assert mine.poll(120)
        place, right = mine.recv()
        assert right
    into = torch.zeros(ROWS, COLUMNS, dtype=torch.int32, device="cuda:0")
    with Subscriber(place, {"w": into}, **HERE) as subscriber:
        assert subscriber.stage(1, timeout=60).publisher_bytes == 0
        subscriber.commit()
        assert same(into, 1)
    mine.send("end")
    process.join(30)
