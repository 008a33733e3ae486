# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Memory that is registered twice, again, read-only or of no bytes, and peers that are loaded again."""

import struct

import numpy as np
import pytest
from other_process import Other
from party import Party

SIZE = 4096


def described(metadata: bytes, address: int) -> int:
    """Where the backend's own description of a region of host memory begins."""
    at = metadata.find(struct.pack("<QIBBh", address, SIZE, 0, 0, -1))
    assert at >= 0
    return at


def test_a_peer_whose_load_failed_is_loaded_again(joined, names, transport):
    pair = joined(SIZE, transport=transport)
    whole = pair.there.metadata()
    at = described(whole, pair.theirs)
    here = Party(names("late"), {"transport": transport})
    mine = here.memory("m", SIZE, 7)
    for _ in range(3):
        with pytest.raises(Exception, match="(?i)invalid|backend|mismatch"):
            here.add(whole[:at] + bytes(64) + whole[at + 64 :])
        assert here.add(whole) == pair.there.name
        assert here.move("WRITE", pair.there.name, [(mine, SIZE)], [(pair.theirs, SIZE)], b"x") == "DONE"
        assert pair.there.notes(1) == [(here.name, b"x")]
        # A part that is described otherwise than before has the agent forget all of the peer.
        with pytest.raises(Exception, match="(?i)not.?allowed|invalid|backend|mismatch"):
            here.add(whole[:at] + bytes(64) + whole[at + 64 :])
    assert pair.there.contents("m") == b"\7" * SIZE


def test_a_forgotten_peer_gives_way_to_its_successor(joined, names):
    pair = joined(SIZE)
    here = Party(names("late"))
    mine = here.memory("m", SIZE, 7)
    whole = pair.there.metadata()
    at = described(whole, pair.theirs)
    with pytest.raises(Exception, match="(?i)invalid|backend|mismatch"):
        here.add(whole[:at] + bytes(64) + whole[at + 64 :])
    another = Other()
    try:
        successor = another.open(pair.there.name)
        theirs = successor.memory("m", SIZE)
        assert here.add(successor.metadata()) == pair.there.name
        assert here.move("WRITE", pair.there.name, [(mine, SIZE)], [(theirs, SIZE)]) == "DONE"
        assert successor.contents("m") == b"\7" * SIZE and pair.there.contents("m") == bytes(SIZE)
    finally:
        another.stop()


def test_a_range_that_is_registered_twice_is_loaded(joined, transport):
    pair = joined(SIZE, transport=transport)
    here, there = pair.here, pair.there
    spans = [(pair.mine, SIZE)], [(pair.theirs, SIZE)]
    for count in (1, 2):
        there.register("m", count)
        assert here.add(there.metadata()) == there.name
        here.fill("m", count)
        assert here.move("WRITE", there.name, *spans) == "DONE"
        assert there.differs("m", count) == 0
    # One range twice in a list: agents give the first of them back twice.
    there.give_back("m", 2)
    there.give_back("m", 1)
    there.memory("other", SIZE)
    assert there.contents("m")[:1] == here.contents("m")[:1], "its process lives"


def test_a_range_that_is_registered_again_is_loaded(joined, transport):
    pair = joined(SIZE, transport=transport)
    here, there = pair.here, pair.there
    spans = [(pair.mine, SIZE)], [(pair.theirs, SIZE)]
    handle = here.request("WRITE", there.name, *spans)
    assert here.run(handle) == "DONE"
    for seed in range(1, 4):
        there.forget("m")
        here.set("m", 200)
        assert here.run(handle) not in ("DONE", "PROC")
        assert there.checksum("m") != here.checksum("m"), "nobody may write to what was given back"
        there.register("m")
        assert here.add(there.metadata()) == there.name
        here.fill("m", seed)
        handle = here.request("WRITE", there.name, *spans)
        assert here.run(handle) == "DONE"
        assert there.differs("m", seed) == 0
        # The same without a look of the peer's in between: it knows only the old one.
        there.forget("m")
        there.register("m")
        here.fill("m", 10 * seed)
        assert here.run(handle) == "DONE"
        assert there.differs("m", 10 * seed) == 0


def test_within_an_agent_a_range_may_be_registered_again(names):
    here = Party(names("alone"))
    mine, other = here.memory("m", SIZE, 1), here.memory("n", SIZE, 2)
    for value in range(3, 6):
        here.set("n", value)
        assert here.move("WRITE", here.name, [(other, SIZE)], [(mine, SIZE)]) == "DONE"
        assert here.contents("m") == bytes([value]) * SIZE
        here.forget("m")
        here.register("m")


def test_memory_of_no_bytes(joined, transport):
    pair = joined(SIZE, transport=transport)
    here, there = pair.here, pair.there
    for party in (here, there):
        party.register_ranges([(0, 0), (pair.mine if party is here else pair.theirs, 0)])
    assert here.add(there.metadata()) == there.name
    here.fill("m", 5)
    spans = [(pair.mine, 0), (pair.mine, SIZE)], [(pair.theirs, 0), (pair.theirs, SIZE)]
    assert here.move("WRITE", there.name, *spans, b"list") == "DONE"
    assert there.differs("m", 5) == 0
    assert here.move("WRITE", there.name, [(pair.mine, 0)], [(pair.theirs, 0)], b"nothing") == "DONE"
    assert there.notes(2) == [(here.name, b"list"), (here.name, b"nothing")]


def test_memory_that_peers_may_only_read(joined, names, transport):
    pair = joined(SIZE, transport=transport)
    here, there = pair.here, pair.there
    frozen = there.memory("frozen", SIZE, 9, "read_only")
    assert here.add(there.metadata()) == there.name
    with_note = [(pair.mine, SIZE)], [(frozen, SIZE)]
    assert here.move("WRITE", there.name, *with_note) == "nixlNotAllowedError"
    assert there.contents("frozen") == b"\t" * SIZE
    if not here.agent.check_remote_metadata(there.name):  # agents may drop a peer for that
        here.add(there.metadata())
    assert here.move("READ", there.name, *with_note) == "DONE"
    assert np.array_equal(here.arrays["m"], np.full(SIZE, 9, np.uint8))
