# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.directory in Ray's store: an actor publishes its endpoint, another one finds it and sends it bytes; the name of one
that is killed goes with its lease; a thousand names are read at once."""

import contextlib
import time

import numpy as np
import ray

from uccl import directory, p2p

WHERE = "ray://of-a-test"
LEASE = 1.0
SIZE = 100_000
_SECONDS = 60


@ray.remote(num_cpus=0)
class Publisher:
    def publish(self, name: str) -> tuple[str, int]:
        self.names = directory.use(WHERE, LEASE)
        self.endpoint = p2p.Endpoint(0, 1)
        entry = self.names.publish(name, self.endpoint)
        return entry.address, entry.port

    def receive(self) -> int:
        ok, _, _, connection = self.endpoint.accept(timeout=_SECONDS)
        array = np.zeros(SIZE, np.uint8)
        assert ok and self.endpoint.recv(connection, array), p2p.last_error()
        return int(array.sum())


@ray.remote(num_cpus=0)
class Sender:
    def send(self, name: str) -> bool:
        with directory.use(WHERE) as names, p2p.Endpoint(0, 1) as endpoint:
            connection = names.lookup(name, timeout=_SECONDS).connect(endpoint)
            return endpoint.send(connection, np.full(SIZE, 7, np.uint8))


def until_gone(names: directory.Directory, name: str) -> None:
    deadline = time.monotonic() + _SECONDS
    with contextlib.suppress(LookupError):
        while names.lookup(name):
            assert time.monotonic() < deadline, "the lease of one that was killed"
            time.sleep(0.05)


def main() -> None:
    with directory.use(WHERE) as names:
        try:
            names.publish("a", "10.0.0.1:5")
        except directory.DirectoryError as error:
            assert "ray.init" in str(error), error
        else:
            raise AssertionError("published without a cluster")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="warning")
    publisher, sender = Publisher.remote(), Sender.remote()
    sent = sender.send.remote("decode/0")  # it waits for the name
    place = ray.get(publisher.publish.remote("decode/0"), timeout=_SECONDS)
    assert ray.get(publisher.receive.remote(), timeout=_SECONDS) == 7 * SIZE
    assert ray.get(sent, timeout=_SECONDS)
    with directory.use(WHERE, 10) as names:
        found = names.lookup("decode/0")
        assert (found.address, found.port) == place
        assert names.entries() == [found]
        ray.kill(publisher)
        until_gone(names, "decode/0")
        assert names.entries() == []
        for number in range(1000):
            names.publish(f"worker-{number}", f"10.0.{number // 250}.{number % 250}:18500")
        begun = time.monotonic()
        assert len(names.entries()) == 1000
        taken = time.monotonic() - begun
        assert taken < 5, taken
        names.withdraw("worker-7")
        assert len(names.entries()) == 999
    with directory.use(WHERE) as names:
        assert names.entries() == []
    print(f"ray {ray.__version__}: met by its store; 1000 names read in {taken:.2f} s")


if __name__ == "__main__":
    main()
