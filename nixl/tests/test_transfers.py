# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Bytes between two agents in two processes, in every order of calls that stacks use."""

import numpy as np
import pytest
from party import Party, wait_until

BLOCK = 4096


def test_write_and_read(joined, transport):
    pair = joined(8 << 20, transport=transport)
    pair.here.fill("m", 1)
    mine, theirs = [(pair.mine, pair.size)], [(pair.theirs, pair.size)]
    handle = pair.here.request("WRITE", pair.there.name, mine, theirs, b"first")
    assert pair.here.run(handle, b"first") == "DONE"
    # The notification is the commit: the bytes are there when it is.
    assert pair.there.notes(1) == [(pair.here.name, b"first")]
    assert pair.there.differs("m", 1) == 0
    pair.here.agent.release_xfer_handle(handle)
    pair.there.fill("m", 2)
    assert pair.here.move("READ", pair.there.name, mine, theirs, b"read it") == "DONE"
    assert pair.here.differs("m", 2) == 0
    assert pair.there.notes(1) == [(pair.here.name, b"read it")]


def test_repost_with_another_notification(joined, transport):
    pair = joined(transport=transport)
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, pair.size)], [(pair.theirs, pair.size)])
    for seed in range(5):
        pair.here.fill("m", seed)
        assert pair.here.run(handle, b"%d" % seed) == "DONE"
        assert pair.there.notes(1) == [(pair.here.name, b"%d" % seed)]
        assert pair.there.differs("m", seed) == 0


def test_post_without_notification_sends_none(joined):
    pair = joined()
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, 8)], [(pair.theirs, 8)])
    assert pair.here.run(handle) == "DONE"
    pair.here.notify(pair.there.name, b"the only one")
    assert pair.there.notes(1) == [(pair.here.name, b"the only one")]


@pytest.mark.parametrize("op", ["WRITE", "READ"])
@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_prepared_lists_in_any_order(joined, transport, op, count):
    """As vLLM does: both sides' lists prepared once, requests made of index arrays, posted several times."""
    block = 64
    pair = joined(count * block, transport=transport)
    here, agent = pair.here, pair.here.agent
    mine = agent.prep_xfer_dlist("", here.descs([(pair.mine + i * block, block) for i in range(count)]))
    theirs = agent.prep_xfer_dlist(
        pair.there.name, here.descs([(pair.theirs + i * block, block) for i in range(count)])
    )
    there_order = np.random.default_rng(5).permutation(count).astype(np.int32)
    indices = list(range(count)), there_order.tolist()
    handle = agent.make_prepped_xfer(op, mine, indices[0], theirs, indices[1], b"")
    for seed in (7, 8):
        (here if op == "WRITE" else pair.there).fill("m", seed)
        assert here.run(handle, b"done") == "DONE"
        assert pair.there.notes(1) == [(here.name, b"done")]
        ours = here.arrays["m"].reshape(count, block)
        other = np.frombuffer(pair.there.contents("m"), np.uint8).reshape(count, block)
        assert np.array_equal(other[there_order], ours)


def test_both_directions_at_once(joined, transport):
    pair = joined(32 << 20, transport=transport)
    half = pair.size // 2
    pair.here.fill("m", 1)
    pair.there.fill("m", 2)
    expected_there = pair.here.contents("m")[:half]
    expected_here = pair.there.contents("m")[half:]
    pair.there.other.begin(
        "of", pair.there.name, "move", "WRITE", pair.here.name, [(pair.theirs + half, half)], [(pair.mine + half, half)]
    )
    assert pair.here.move("WRITE", pair.there.name, [(pair.mine, half)], [(pair.theirs, half)]) == "DONE"
    assert pair.there.other.result() == "DONE"
    assert pair.there.contents("m")[:half] == expected_there
    assert pair.here.contents("m")[half:] == expected_here


def test_the_target_makes_no_call(joined, transport):
    """The other process sits in a pipe read while bytes come and go, and learns of them when it looks."""
    pair = joined(transport=transport)
    pair.here.fill("m", 3)
    spans = [(pair.mine, pair.size)], [(pair.theirs, pair.size)]
    assert pair.here.move("WRITE", pair.there.name, *spans, b"x") == "DONE"
    pair.here.arrays["m"][:] = 0
    assert pair.here.move("READ", pair.there.name, *spans) == "DONE"
    assert pair.here.differs("m", 3) == 0
    assert pair.there.notes(1) == [(pair.here.name, b"x")]


def test_local_transfers_and_notifications_to_oneself(names):
    party = Party(names("alone"))
    source, target = party.memory("s", 1 << 20), party.memory("t", 1 << 20)
    party.fill("s", 4)
    assert party.move("WRITE", party.name, [(source, 1 << 20)], [(target, 1 << 20)], b"moved") == "DONE"
    assert party.notes(1) == [(party.name, b"moved")]
    assert party.differs("t", 4) == 0
    party.fill("t", 5)
    assert party.move("READ", party.name, [(source, 1 << 20)], [(target, 1 << 20)]) == "DONE"
    assert party.differs("s", 5) == 0
    party.notify(party.name, b"to myself")
    assert party.notes(1) == [(party.name, b"to myself")]


def test_two_agents_of_one_process(names):
    left, right = Party(names("left")), Party(names("right"))
    mine, theirs = left.memory("m", 1 << 20), right.memory("m", 1 << 20)
    left.add(right.metadata())
    left.fill("m", 6)
    assert left.move("WRITE", right.name, [(mine, 1 << 20)], [(theirs, 1 << 20)], b"n") == "DONE"
    assert right.notes(1) == [(left.name, b"n")]
    assert right.differs("m", 6) == 0


def test_deregistered_memory_cannot_be_reached(joined, transport):
    pair = joined(transport=transport)
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, 4096)], [(pair.theirs, 4096)])
    assert pair.here.run(handle) == "DONE"
    pair.there.forget("m")
    pair.here.arrays["m"][:] = 77
    assert pair.here.run(handle) in ("nixlNotFoundError", "nixlNotAllowedError")
    assert 77 not in pair.there.contents("m")[:4096]
    # Nothing else is harmed by that.
    theirs = pair.there.memory("n", 4096)
    pair.here.add(pair.there.metadata())
    assert pair.here.move("WRITE", pair.there.name, [(pair.mine, 4096)], [(theirs, 4096)]) == "DONE"
    assert pair.there.contents("n") == b"M" * 4096


def test_telemetry_counts_the_bytes(joined):
    pair = joined()
    pair.here = Party(pair.here.name + "t", capture_telemetry=True)
    mine = pair.here.memory("m", pair.size)
    pair.here.add(pair.there.metadata())
    handle = pair.here.request("WRITE", pair.there.name, [(mine, pair.size)], [(pair.theirs, pair.size)])
    assert pair.here.run(handle) == "DONE"
    assert wait_until(lambda: pair.here.agent.get_xfer_telemetry(handle).totalBytes == pair.size, 5)


def test_what_the_backend_does_not_offer_is_said(joined):
    pair = joined()
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, 8)], [(pair.theirs, 8)])
    with pytest.raises(Exception, match="(?i)not.?supported"):
        pair.here.agent.estimate_xfer_cost(handle)
