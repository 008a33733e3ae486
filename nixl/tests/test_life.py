# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Requests that are given up, peers that die, leave, come back or lose their connection."""

import os
import signal
import time

import pytest
from other_process import Other
from party import GONE, LIMIT, Party, shut_connections, wait_until

KEEPALIVE = 2.0  # seconds
BOUND = 12.0  # keepalive, notice and a machine that is busy
AT_ONCE = 0.25  # seconds that a call may take that must not wait for anything
ONCE = 1.5  # the same of one that cannot be tried again on a busy machine; what it would wait for takes longer
IMPATIENT = {"keepalive_ms": str(int(KEEPALIVE * 1000))}
BIG = 64 << 20


def timed(call, *arguments):
    """What a call gives, or the class of what it raises, and the seconds that it took."""
    start = time.monotonic()
    try:
        result = call(*arguments)
    except Exception as error:  # noqa: BLE001
        result = type(error)
    return result, time.monotonic() - start


def quick(call, *arguments):
    """What a call that must not wait gives, or the class of what it raises."""
    result, seconds = timed(call, *arguments)
    assert seconds < ONCE
    return result


def peer_stays_known(party, name):
    """From 1.5 on agents keep a peer that is gone until they are told to drop it."""
    return party.agent.check_remote_metadata(name)


@pytest.fixture
def doomed(joined, mortal, transport):
    return joined(BIG, process=mortal, transport=transport, **IMPATIENT)


def released(party, handle):
    """Releases as an application would: again while the agent says that the request is still active."""

    def attempt():
        return quick(party.agent.release_xfer_handle, handle) is None

    return wait_until(attempt, BOUND)


@pytest.mark.parametrize("op", ["WRITE", "READ"])
def test_release_while_active(joined, transport, op):
    pair = joined(BIG, transport=transport)
    source, target = (pair.here, pair.there) if op == "WRITE" else (pair.there, pair.here)
    spans = [(pair.mine, BIG)], [(pair.theirs, BIG)]
    cut_short = 0
    for first in range(1, 41, 2):
        source.set("m", first)
        handle = pair.here.request(op, pair.there.name, *spans)
        assert pair.here.agent.transfer(handle) in ("PROC", "DONE")
        assert released(pair.here, handle)
        seen = target.checksum("m", 0x1000)
        cut_short += target.last_byte("m") != first
        source.set("m", first + 1)
        # Whatever were still on its way would come before this, or bring bytes of the second filling.
        assert pair.here.move(op, pair.there.name, [(pair.mine, 0x1000)], [(pair.theirs, 0x1000)]) == "DONE"
        assert target.checksum("m", 0x1000) == seen
        if cut_short and first >= 5:
            break
    assert cut_short, "every transfer was through before it could be released"


def test_killed_while_it_is_written_to(doomed):
    handle = doomed.here.request("WRITE", doomed.there.name, [(doomed.mine, BIG)], [(doomed.theirs, BIG)])
    assert doomed.here.run(handle) == "DONE"
    doomed.there.other.kill()
    start = time.monotonic()
    while (outcome := doomed.here.run(handle)) == "DONE":  # the kernel may serve the dead for a moment
        assert time.monotonic() - start < BOUND
    assert outcome == "nixlRemoteDisconnectError"
    assert time.monotonic() - start < BOUND
    assert_dead(doomed, handle)


@pytest.fixture
def impatient(joined, mortal, transport):
    """A stopped peer counts as gone far within BOUND, and one that a busy machine holds up does not."""
    return joined(BIG, process=mortal, transport=transport, hung_ms="2000", **IMPATIENT)


def test_a_peer_that_hangs_counts_as_gone(impatient):
    doomed = impatient
    handle = doomed.here.request("WRITE", doomed.there.name, [(doomed.mine, 64)], [(doomed.theirs, 64)])
    assert doomed.here.run(handle) == "DONE"
    pid = doomed.there.other.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        outcome = wait_until(lambda: (end := doomed.here.run(handle)) != "DONE" and end, BOUND)
        assert outcome == "nixlRemoteDisconnectError"
        assert_dead(doomed, handle)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_stopped_peer_is_slow_and_no_more_than_that(doomed):
    here, there = doomed.here, doomed.there
    handle = here.request("WRITE", there.name, [(doomed.mine, 64)], [(doomed.theirs, 64)])
    assert here.run(handle, b"before") == "DONE"
    assert there.notes(1) == [(here.name, b"before")]
    pid = there.other.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        posted = here.agent.transfer(handle, b"meanwhile")
        assert posted in ("PROC", "DONE")
        time.sleep(5 * KEEPALIVE)  # what the test is about
        assert here.agent.check_xfer_state(handle) in ("PROC", "DONE")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: here.agent.check_xfer_state(handle) == "DONE", BOUND)
    assert there.notes(1) == [(here.name, b"meanwhile")]


def assert_dead(pair, handle):
    """Every later call on the peer says so at once, by the backend in 1.5 and by the agent before."""
    here, name = pair.here, pair.there.name
    gone = {GONE} if peer_stays_known(here, name) else {GONE, type(None)} | not_found()
    calls = [
        (here.agent.transfer, handle),
        (here.notify, name, b"hello?"),
        (here.request, "READ", name, [(pair.mine, 8)], [(pair.theirs, 8)]),
    ]
    for call in calls:
        results, seconds = zip(*(timed(*call) for _ in range(3)), strict=True)
        assert set(results) <= gone
        assert min(seconds) < AT_ONCE  # one that waits does so each time
    assert released(here, handle)


def not_found():
    from party import bindings

    return {bindings.nixlNotFoundError}


def test_a_notification_to_the_dead_is_no_success(doomed):
    doomed.here.notify(doomed.there.name, b"alive")
    assert doomed.there.notes(1)
    doomed.there.other.kill()

    def refused():
        return quick(doomed.here.notify, doomed.there.name, b"?") is GONE

    assert wait_until(refused, BOUND)
    assert wait_until(refused, ONCE), "and again"


def test_peer_that_died_before_it_was_used(mortal, names):
    here = Party(names("here"), IMPATIENT)
    there = mortal.open(names("there"))
    mine, theirs = here.memory("m", 64), there.memory("m", 64)
    metadata = there.metadata()
    mortal.kill()
    start = time.monotonic()
    assert here.add(metadata) == there.name
    assert time.monotonic() - start < ONCE

    def attempt():
        try:
            return here.move("WRITE", there.name, [(mine, 64)], [(theirs, 64)])
        except GONE:
            return "nixlRemoteDisconnectError"

    assert attempt() == "nixlRemoteDisconnectError"
    assert time.monotonic() - start < BOUND


def test_adding_a_silent_peer_does_not_wait(mortal, names):
    here = Party(names("here"), IMPATIENT)
    there = mortal.open(names("there"))
    metadata = there.metadata()
    os.kill(mortal.process.pid, signal.SIGSTOP)
    assert quick(here.add, metadata) == there.name
    assert quick(here.notify, there.name, b"later") is None
    os.kill(mortal.process.pid, signal.SIGCONT)
    assert there.notes(1) == [(here.name, b"later")]


def test_restart_under_the_same_name(doomed, transport):
    handle = doomed.here.request("WRITE", doomed.there.name, [(doomed.mine, 64)], [(doomed.theirs, 64)])
    assert doomed.here.run(handle) == "DONE"
    doomed.there.other.kill()
    assert wait_until(lambda: doomed.here.run(handle) == "nixlRemoteDisconnectError", BOUND)
    again = Other()
    try:
        reborn = again.open(doomed.there.name, {"transport": transport})
        theirs = reborn.memory("m", 4096)
        if peer_stays_known(doomed.here, reborn.name):
            doomed.here.remove(reborn.name)
        assert doomed.here.add(reborn.metadata()) == reborn.name
        doomed.here.arrays["m"][:4096] = 17
        spans = [(doomed.mine, 4096)], [(theirs, 4096)]
        assert doomed.here.move("WRITE", reborn.name, *spans, b"again") == "DONE"
        assert reborn.notes(1) == [(doomed.here.name, b"again")]
        assert reborn.contents("m") == b"\x11" * 4096
        assert released(doomed.here, handle)
    finally:
        again.stop()


def test_another_process_at_the_old_address(mortal, names):
    here = Party(names("here"), IMPATIENT)
    first = mortal.open(names("there"), {"port": "0"})
    metadata = first.metadata()
    mine, theirs = here.memory("m", 64), first.memory("m", 64)
    metadata = first.metadata()
    at = metadata.find(b"UCCLNIXL")
    port = int.from_bytes(metadata[at + 12 : at + 14], "little")
    here.add(metadata)
    assert here.move("WRITE", first.name, [(mine, 64)], [(theirs, 64)]) == "DONE"
    handle = here.request("WRITE", first.name, [(mine, 64)], [(theirs, 64)])
    mortal.kill()
    again = Other()
    try:
        second = again.open(first.name, {"port": str(port)})
        second.memory("m", 64)
        outcome = wait_until(lambda: (end := here.run(handle)) != "DONE" and end, BOUND)
        assert outcome == "nixlRemoteDisconnectError"
        assert quick(here.notify, first.name, b"for the first alone") is not None
        assert second.notes(1, seconds=0.3) == []
    finally:
        again.stop()


def post_again(pair, handle, spans, note):
    """Posts once more after a loss; whether that went through."""
    if not peer_stays_known(pair.here, pair.there.name):  # before 1.5, if the loss met a transfer
        pair.here.add(pair.there.metadata())
        return pair.here.move("WRITE", pair.there.name, *spans, note) == "DONE"
    return pair.here.run(handle, note) == "DONE"


def test_a_broken_connection_to_a_living_peer_is_made_again(joined, transport):
    pair = joined(transport=transport)
    spans = [(pair.mine, pair.size)], [(pair.theirs, pair.size)]
    handle = pair.here.request("WRITE", pair.there.name, *spans)
    assert pair.here.run(handle, b"before") == "DONE"
    assert pair.there.notes(1) == [(pair.here.name, b"before")]
    assert shut_connections() > 0
    pair.here.fill("m", 8)
    # Until the loss is noticed, data may still go another way, and the notification with the old connection is lost.
    came = wait_until(
        lambda: post_again(pair, handle, spans, b"after") and pair.there.notes(1, seconds=0.2), LIMIT
    )
    assert came and set(came) == {(pair.here.name, b"after")}
    assert pair.there.differs("m", 8) == 0


def test_a_peer_that_did_not_answer_for_a_while_is_alive_again(impatient):
    doomed = impatient
    spans = [(doomed.mine, doomed.size)], [(doomed.theirs, doomed.size)]
    handle = doomed.here.request("WRITE", doomed.there.name, *spans)
    assert doomed.here.run(handle) == "DONE"
    pid = doomed.there.other.process.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert shut_connections() > 0  # and may be gone on with until the peer is hung
        assert wait_until(lambda: doomed.here.run(handle) == "nixlRemoteDisconnectError", BOUND)
        start = time.monotonic()  # and stays so, for longer than one attempt to reach it
        while peer_stays_known(doomed.here, doomed.there.name) and time.monotonic() - start < 3 * KEEPALIVE:
            assert doomed.here.run(handle) == "nixlRemoteDisconnectError"
    finally:
        os.kill(pid, signal.SIGCONT)
    doomed.here.fill("m", 9)
    assert wait_until(lambda: post_again(doomed, handle, spans, b"again"), LIMIT)
    assert doomed.there.notes(1) == [(doomed.here.name, b"again")]
    assert doomed.there.differs("m", 9) == 0


def test_removing_a_peer_while_a_transfer_runs(joined, transport):
    pair = joined(BIG, transport=transport)
    handle = pair.here.request("READ", pair.there.name, [(pair.mine, BIG)], [(pair.theirs, BIG)])
    pair.here.agent.transfer(handle)
    assert quick(pair.here.remove, pair.there.name) is None
    assert released(pair.here, handle)
    assert pair.here.add(pair.there.metadata()) == pair.there.name
    assert pair.here.move("WRITE", pair.there.name, [(pair.mine, 64)], [(pair.theirs, 64)], b"ok") == "DONE"
    assert pair.there.notes(1) == [(pair.here.name, b"ok")]


def test_an_agent_may_end_with_all_of_it_open(joined, transport):
    pair = joined(BIG, transport=transport)
    handle = pair.here.request("READ", pair.there.name, [(pair.mine, BIG)], [(pair.theirs, BIG)])
    pair.here.agent.transfer(handle)
    del handle
    start = time.monotonic()
    del pair.here
    assert time.monotonic() - start < BOUND
    assert pair.there.contents("m")[:4] == bytes(4)


def test_agents_that_end_in_order_warn_nobody(names, transport, capfd):
    parties = [Party(names("one-of-many"), {"transport": transport, "workers": "1"}) for _ in range(8)]
    addresses = [party.memory("m", 64) for party in parties]
    for party in parties:
        for other in parties:
            if other is not party:
                party.add(other.metadata())
    for party, mine in zip(parties, addresses, strict=True):
        for other, theirs in zip(parties, addresses, strict=True):
            assert party.move("WRITE", other.name, [(mine, 64)], [(theirs, 64)]) == "DONE"
    capfd.readouterr()
    del party, other
    parties.clear()
    assert "warning" not in capfd.readouterr().err


def test_the_end_of_a_killed_agent_is_a_warning(doomed, capfd):
    handle = doomed.here.request("WRITE", doomed.there.name, [(doomed.mine, 64)], [(doomed.theirs, 64)])
    assert doomed.here.run(handle) == "DONE"
    capfd.readouterr()
    doomed.there.other.kill()
    assert wait_until(lambda: doomed.here.run(handle) == "nixlRemoteDisconnectError", BOUND)
    said = ""

    def warned():
        nonlocal said
        said += capfd.readouterr().err
        return f"NIXL agent {doomed.there.name} is gone" in said

    assert wait_until(warned, BOUND)
