# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Metadata in parts, late, repeated, and from those who mean harm."""

import struct

import pytest
from party import Party

MARK = b"UCCLNIXL"  # a blob of connection info begins with it
INFO_BYTES = 128


def changed(metadata: bytes, at: int, value: bytes) -> bytes:
    return metadata[:at] + value + metadata[at + len(value) :]


def info_at(metadata: bytes) -> int:
    at = metadata.find(MARK)
    assert at >= 0 and metadata.find(MARK, at + 1) < 0, "connection info stands in metadata once"
    return at


def descriptor_at(metadata: bytes, address: int, size: int) -> int:
    """Where the backend's own description of a region of host memory begins."""
    at = metadata.find(struct.pack("<QIBBh", address, size, 0, 0, -1))
    assert at >= 0
    return at


def resummed(info: bytes) -> bytes:
    """Connection info whose sum is right again, as somebody who knows the format would make it."""
    total = 0xCBF29CE484222325
    for byte in info[: INFO_BYTES - 8]:
        total = (total ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return info[: INFO_BYTES - 8] + struct.pack("<Q", total)


def test_memory_that_is_registered_later(joined):
    pair = joined()
    theirs = pair.there.memory("late", 4096)
    with pytest.raises(Exception, match="(?i)not.?found|invalid"):
        pair.here.request("WRITE", pair.there.name, [(pair.mine, 8)], [(theirs, 8)])
    assert pair.here.add(pair.there.metadata()) == pair.there.name
    handle = pair.here.request("WRITE", pair.there.name, [(pair.mine, 8)], [(pair.theirs, 8)])
    assert pair.here.move("WRITE", pair.there.name, [(pair.mine, 8)], [(theirs, 8)], b"a") == "DONE"
    assert pair.here.run(handle, b"b") == "DONE"
    assert [message for _, message in pair.there.notes(2)] == [b"a", b"b"]


def test_partial_metadata(other, names):
    here = Party(names("here"))
    there = other.open(names("there"))
    regions = {name: there.memory(name, 4096) for name in ("a", "b")}
    mine = here.memory("m", 4096, 9)
    assert here.add(there.partial("a")) == there.name
    assert here.move("WRITE", there.name, [(mine, 4096)], [(regions["a"], 4096)]) == "DONE"
    with pytest.raises(Exception, match="(?i)not.?found|invalid"):
        here.request("WRITE", there.name, [(mine, 8)], [(regions["b"], 8)])
    assert here.add(there.partial("b", conn_info=False)) == there.name
    assert here.move("WRITE", there.name, [(mine, 4096)], [(regions["b"], 4096)]) == "DONE"
    assert there.contents("a") == there.contents("b") == b"\t" * 4096


def test_memory_without_connection_info_is_refused(other, names):
    here = Party(names("here"))
    there = other.open(names("there"))
    there.memory("a", 4096)
    with pytest.raises(Exception, match="(?i)not.?found|invalid|backend"):
        here.add(there.partial("a", conn_info=False))


def test_repeated_and_overlapping_registrations(other, names):
    here = Party(names("here"))
    there = other.open(names("there"))
    theirs = there.memory("m", 1 << 16)
    mine = here.memory("m", 1 << 16, 5)
    for start, size in ((0, 1 << 16), (100, 5000), (4096, 4096)):
        here.agent.register_memory([(mine + start, size, 0, "")], "DRAM")
    here.add(there.metadata())
    assert here.move("WRITE", there.name, [(mine + 100, 5000)], [(theirs + 100, 5000)]) == "DONE"
    assert there.contents("m")[:5101] == bytes(100) + b"\x05" * 5000 + b"\0"


def test_connection_info_is_constant(names):
    party = Party(names("constant"))
    first = party.metadata()
    party.memory("m", 4096)
    second = party.metadata()
    info = first[info_at(first) :][:INFO_BYTES]
    assert len(info) == INFO_BYTES and info == second[info_at(second) :][:INFO_BYTES]


@pytest.mark.parametrize("at", range(0, INFO_BYTES, 5))
def test_any_changed_byte_of_connection_info_is_noticed(other, names, at):
    here = Party(names("here"))
    there = other.open(names("there"))
    metadata = there.metadata()
    place = info_at(metadata) + at
    with pytest.raises(Exception, match="(?i)invalid|backend|not.?found"):
        here.add(changed(metadata, place, bytes([metadata[place] ^ 0x40])))
    # The agent and its backend are as before.
    assert here.add(metadata) == there.name
    here.notify(there.name, b"well")
    assert there.notes(1) == [(here.name, b"well")]


@pytest.mark.parametrize(
    "field, value",
    {
        "newer version": (8, struct.pack("<I", 2)),
        "no port": (12, struct.pack("<H", 0)),
        "longest length": (14, struct.pack("<H", 0xFFFF)),
        "length past the field": (14, struct.pack("<H", 65)),
        "no address": (14, struct.pack("<H", 0)),
        "half an address": (14, struct.pack("<HQ", 4, 0) + b"10.7"),
        "a path": (14, struct.pack("<HQ", 9, 0) + b"/dev/null"),
        "zero within the address": (14, struct.pack("<HQ", 12, 0) + b"127.0.0.1\0ab"),
        "bytes after the address": (100, b"x"),
    }.items(),
)
def test_forged_connection_info(other, names, field, value):
    here = Party(names("here"))
    there = other.open(names("there"))
    metadata = there.metadata()
    start = info_at(metadata)
    info = metadata[start : start + INFO_BYTES]
    forged = changed(metadata, start, resummed(changed(info, value[0], value[1])))
    assert resummed(info) == info, "the sum of the genuine one is as computed here"
    with pytest.raises(Exception, match="(?i)invalid|backend|not.?found"):
        here.add(forged)
    assert here.add(metadata) == there.name


def test_memory_described_by_another_process(joined):
    pair = joined(4096)
    metadata = pair.there.metadata()
    stranger = Party(pair.here.name + "s")
    incarnation = descriptor_at(metadata, pair.theirs, 4096) + 40
    with pytest.raises(Exception, match="(?i)not.?allowed|backend|invalid"):
        stranger.add(changed(metadata, incarnation, b"\1\2\3\4\5\6\7\x08"))


@pytest.mark.parametrize("name, at", [("kind", 12), ("zero", 13), ("mark", 60)])
def test_damaged_description_of_memory(joined, name, at):
    pair = joined(4096)
    metadata = pair.there.metadata()
    place = descriptor_at(metadata, pair.theirs, 4096) + at
    with pytest.raises(Exception, match="(?i)invalid|backend|mismatch"):
        Party(pair.here.name + "s").add(changed(metadata, place, bytes([metadata[place] ^ 0x5A])))


@pytest.mark.parametrize("op", ["WRITE", "READ"])
def test_a_guessed_key_moves_nothing(joined, transport, op):
    pair = joined(4096, transport=transport)
    metadata = pair.there.metadata()
    key = descriptor_at(metadata, pair.theirs, 4096) + 24
    thief = Party(pair.here.name + "t", {"transport": transport})
    mine = thief.memory("m", 4096, 66)
    thief.add(changed(metadata, key, bytes(16)))
    outcome = thief.move(op, pair.there.name, [(mine, 4096)], [(pair.theirs, 4096)])
    assert outcome in ("nixlNotAllowedError", "nixlNotFoundError")
    assert pair.there.contents("m") == bytes(4096)
    assert thief.contents("m") == b"B" * 4096


def test_unknown_parameters_are_refused(names):
    with pytest.raises(Exception, match="(?i)backend"):
        Party(names("x"), {"no_such_option": "tcp"})
    with pytest.raises(Exception, match="(?i)backend"):
        Party(names("x"), {"transport": "carrier-pigeon"})


def test_the_parameters_are_listed(names):
    party = Party(names("p"))
    listed = party.agent.get_plugin_params("TCPX")
    assert {"transport", "keepalive_ms", "listen_address", "key_file"} <= set(listed)
    # Handing them back as they are changes nothing.
    again = Party(names("q"), dict(listed) | {"listen_address": "127.0.0.1"})
    again.notify(again.name, b"works")
    assert again.notes(1)
