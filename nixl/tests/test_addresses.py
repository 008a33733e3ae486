# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Where agents listen, and whom they let in."""

import pytest
from party import Party, wait_until


def test_ipv6(joined):
    pair = joined(listen_address="::1", transport="tcp")
    pair.here.fill("m", 1)
    spans = [(pair.mine, pair.size)], [(pair.theirs, pair.size)]
    assert pair.here.move("WRITE", pair.there.name, *spans, b"six") == "DONE"
    assert pair.there.notes(1) == [(pair.here.name, b"six")]
    assert pair.there.differs("m", 1) == 0


def test_several_agents_on_a_host(other, names):
    """Three here and three there, everyone with everyone over there."""
    size = 4096
    ours = [Party(names("ours")) for _ in range(3)]
    theirs = [other.open(names("theirs")) for _ in range(3)]
    sources = [party.memory("m", size, 10 + i) for i, party in enumerate(ours)]
    targets = [[agent.memory(party.name, size) for party in ours] for agent in theirs]
    for i, party in enumerate(ours):
        for agent, places in zip(theirs, targets, strict=True):
            party.add(agent.metadata())
            assert party.move("WRITE", agent.name, [(sources[i], size)], [(places[i], size)], b"hi") == "DONE"
    for agent in theirs:
        assert sorted(agent.notes(3)) == sorted((party.name, b"hi") for party in ours)
        for i, party in enumerate(ours):
            assert agent.contents(party.name) == bytes([10 + i]) * size


def test_environment_and_parameters(names, monkeypatch):
    monkeypatch.setenv("UCCL_P2P_TRANSPORT", "carrier-pigeon")
    with pytest.raises(Exception, match="(?i)backend"):
        Party(names("x"))
    works = Party(names("y"), {"transport": "tcp"})  # a parameter is stronger
    works.notify(works.name, b"here")
    assert works.notes(1)


def test_a_key_file_lets_in_those_who_have_it(other, names, tmp_path):
    keys = [tmp_path / name for name in ("right", "wrong")]
    for key in keys:
        key.write_text(key.name * 8)
        key.chmod(0o600)
    there = other.open(names("there"), {"key_file": str(keys[0]), "listen_address": "127.0.0.1"})
    theirs = there.memory("m", 64)
    friend = Party(names("friend"), {"key_file": str(keys[0])})
    stranger = Party(names("stranger"), {"key_file": str(keys[1])})
    for party in (friend, stranger):
        party.memory("m", 64, 7)
        party.add(there.metadata())

    def outcome(party):
        try:
            return party.move("WRITE", there.name, [(party.arrays["m"].ctypes.data, 64)], [(theirs, 64)])
        except Exception as error:  # noqa: BLE001
            return type(error).__name__

    assert outcome(friend) == "DONE"
    there.fill("m", 1)
    assert wait_until(lambda: outcome(stranger)) == "nixlRemoteDisconnectError"
    assert there.differs("m", 1) == 0
