# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Notifications: any size, each once, under the sender's name."""

import numpy as np
import pytest
from party import Party

SIZES = [0, 1, 4096, (1 << 20) + 1, 20_000_000]


def payload(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_lone(joined, size):
    pair = joined()
    message = payload(size)
    pair.here.notify(pair.there.name, message)
    assert pair.there.note_sizes(1) == [(pair.here.name, size, sum(message))]


@pytest.mark.parametrize("size", SIZES[1:])  # agents take an empty one at the post for none
def test_with_a_transfer(joined, size):
    pair = joined()
    message = payload(size)
    assert pair.here.move("READ", pair.there.name, [(pair.mine, 8)], [(pair.theirs, 8)], message) == "DONE"
    assert pair.there.note_sizes(1) == [(pair.here.name, size, sum(message))]


def test_many_come_once_each(joined):
    pair = joined()
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, 64)], [(pair.theirs, 64)])
    expected = []
    for i in range(500):
        pair.here.notify(pair.there.name, b"lone %d" % i)
        assert pair.here.run(handle, b"with %d" % i) == "DONE"
        expected += [(pair.here.name, b"lone %d" % i), (pair.here.name, b"with %d" % i)]
    came = pair.there.notes(len(expected))
    assert sorted(came) == sorted(expected)
    assert pair.there.notes(1, seconds=0.2) == []


def test_they_bear_their_senders_names(other, names):
    there = other.open(names("there"))
    parties = [Party(names("sender")) for _ in range(4)]
    for party in parties:
        party.add(there.metadata())
        party.notify(there.name, b"from " + party.name.encode())
    assert sorted(there.notes(4)) == [(party.name, b"from " + party.name.encode()) for party in parties]


def test_an_agent_that_ends_has_sent_them(other, names):
    there = other.open(names("there"))
    here = Party(names("here"))
    here.add(there.metadata())
    here.notify(there.name, b"last words")
    name = here.name
    del here
    assert there.notes(1) == [(name, b"last words")]
