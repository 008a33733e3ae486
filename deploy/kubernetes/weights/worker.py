# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""An indexed job: the pod with index 0 offers a set of weights to all the others, and ends once each has all of it."""

import os

import numpy as np

from uccl import directory
from uccl.weights import Publisher, Subscriber

_SHAPES = {f"layer{layer}": (8, 1 << 20) for layer in range(8)}
_SECONDS = 600


def publish(names: directory.Directory) -> None:
    tensors = {name: np.full(shape, layer + 1, np.uint8) for layer, (name, shape) in enumerate(_SHAPES.items())}
    with Publisher() as publisher:
        publisher.publish(1, tensors)
        names.publish("weights-0", publisher.place)
        publisher.wait_copies(1, int(os.environ["SUBSCRIBERS"]), timeout=_SECONDS)
    print("every subscriber has all", flush=True)


def subscribe(names: directory.Directory) -> None:
    tensors = {name: np.zeros(shape, np.uint8) for name, shape in _SHAPES.items()}
    publisher = names.lookup("weights-0", timeout=_SECONDS)
    with Subscriber(f"{publisher.address}:{publisher.port}", tensors) as subscriber:
        got = subscriber.stage(1, timeout=_SECONDS)
        subscriber.commit()
    assert all((tensor == layer + 1).all() for layer, tensor in enumerate(tensors.values()))
    print(f"{got.bytes >> 20} MiB are right, {got.publisher_bytes >> 20} of them from the publisher", flush=True)


if __name__ == "__main__":
    with directory.use(os.environ["WEIGHTS"]) as found:
        (publish if os.environ["JOB_COMPLETION_INDEX"] == "0" else subscribe)(found)
