# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.weights where subscribers find publishers, and each other, by a directory: a folder, torch's TCPStore, etcd."""

import subprocess
import sys
from contextlib import contextmanager

import etcd_server
import numpy as np
import pytest
from test_directory import LEASE, etcd, wait_for, where  # noqa: F401 - a fixture

from uccl import directory
from uccl.weights import Publisher, Subscriber

HERE = {"listen_address": "127.0.0.1", "name": "policy"}


def tensors(value):
    return {"w": np.full(1000, value, np.int32)}


def take(subscriber, target, version):
    done = subscriber.stage(version, timeout=60)
    assert subscriber.commit() == version
    assert (target["w"] == version).all()
    return done


def listed(names):
    return sorted(entry.note for entry in names.entries())


def test_late_ones_find_the_publisher_and_then_each_other(where):  # noqa: F811
    first, second = tensors(0), tensors(0)
    with directory.use(where, LEASE) as names, directory.use(where, LEASE) as others:
        publisher = Publisher(directory=names, **HERE)
        with Subscriber(others, first, **HERE) as early:
            publisher.publish(1, tensors(1))
            publisher.publish(2, tensors(2))
            assert listed(names) == ["1 2"]
            assert early.wait_version(above=1, timeout=60) == 2
            take(early, first, 2)
            assert listed(names) == ["1 2", "2"]
            publisher.close()
            assert listed(names) == ["2"]
            with Subscriber(names, second, **HERE) as late:
                assert late.wait_version(timeout=60) == 2
                assert take(late, second, 2).publisher_bytes == 0
                assert listed(names) == ["2", "2"]
            with Subscriber(names, tensors(0), listen_address="127.0.0.1", name="other") as stranger:
                with pytest.raises(TimeoutError):
                    stranger.wait_version(timeout=0.1)
        assert names.entries() == []


TRAINER = """
import sys
import numpy as np
from uccl import directory
from uccl.weights import Publisher
where, version = sys.argv[1], int(sys.argv[2])
with directory.use(where, lease=1.0) as names, Publisher(directory=names, name="policy", listen_address="127.0.0.1") as publisher:
    publisher.publish(version, {"w": np.full(1000, version, np.int32)})
    print(publisher.place, flush=True)
    sys.stdin.read()
"""


@contextmanager
def trainer(where, version):  # noqa: F811
    words = [sys.executable, "-c", TRAINER, where, str(version)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("127.0.0.1:")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("where", ["folder", "etcd"], indirect=True)  # torch takes long to import
def test_a_trainer_that_was_killed_and_started_elsewhere_is_found(where):  # noqa: F811
    target, late = tensors(0), tensors(0)
    with directory.use(where, LEASE) as names, Subscriber(names, target, **HERE) as subscriber:
        with trainer(where, 1):
            take(subscriber, target, 1)
        wait_for(lambda: listed(names) == ["1"], "the lease of the one that was killed")
        with trainer(where, 2):
            assert subscriber.wait_version(above=1, timeout=60) == 2
            # What it has until it takes the next is there for others.
            with Subscriber(subscriber_place(names, "1"), late, listen_address="127.0.0.1") as other:
                take(other, late, 1)
            take(subscriber, target, 2)
            assert listed(names) == ["2", "2"]


def subscriber_place(names, note):
    (entry,) = [entry for entry in names.entries() if entry.note == note]
    return f"{entry.address}:{entry.port}"


def test_a_directory_that_is_gone_in_the_middle(tmp_path, caplog):
    target, late = tensors(0), tensors(0)
    port = etcd_server.free_port()
    where = f"etcd://127.0.0.1:{port}"  # noqa: F811
    with directory.use(where, LEASE) as names, directory.use(where, LEASE) as others:
        with pytest.raises(directory.DirectoryError, match="etcd at"):
            Publisher(directory=names, **HERE)
        with pytest.raises(directory.DirectoryError, match="etcd at"):
            Subscriber(names, target, **HERE)
        with etcd(tmp_path / "first", port):
            publisher = Publisher(directory=names, **HERE)
            subscriber = Subscriber(others, target, **HERE)
            publisher.publish(1, tensors(1))
            take(subscriber, target, 1)
        publisher.publish(2, tensors(2))
        assert "changes once the directory is back" in caplog.text
        assert subscriber.wait_version(above=1, timeout=60) == 2
        take(subscriber, target, 2)
        assert caplog.text.count("nobody new is found") == 1
        with etcd(tmp_path / "second", port):  # which has forgotten all
            wait_for(lambda: listed(names) == ["1 2", "2"], "what is listed again")
            with Subscriber(names, late, **HERE) as other:
                take(other, late, 2)
            subscriber.close()
            publisher.close()


def test_a_store_that_is_gone_in_the_middle(caplog):
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    target = tensors(0)
    with directory.use(f"tcpstore://127.0.0.1:{store.port}", LEASE) as names, Publisher(directory=names, **HERE) as publisher:
        publisher.publish(1, tensors(1))
        with Subscriber(names, target, **HERE) as subscriber:
            take(subscriber, target, 1)
            del store
            publisher.publish(2, tensors(2))
            take(subscriber, target, 2)
            assert "nobody new is found" in caplog.text


def test_names_of_weights(tmp_path):
    with directory.use(f"folder://{tmp_path}") as names:
        with pytest.raises(ValueError, match="without '/'"):
            Publisher(directory=names, name="a/b")
