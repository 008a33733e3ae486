# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Several threads on one agent, in every mode of synchronisation that the installed NIXL has."""

import threading

import pytest
from party import Party, wait_until

THREADS = 4
ROUNDS = 60
SLICE = 64 << 10


def modes():
    try:
        from nixl_cu13._api import nixl_thread_sync_t
    except ImportError:
        return [None]  # 1.0: none for agents without a listener thread
    return [mode for mode in nixl_thread_sync_t if "DEFAULT" not in mode.name]


def config(mode):
    return {} if mode is None else {"sync_mode": mode}


def locks(mode):
    """Whether the agent locks its tables of peers. Without it, a peer that comes or goes beside a new request makes NIXL
    itself lose entries or crash, whatever the backend (seen with UCX as well)."""
    return mode is not None and not mode.name.endswith("_NONE")


def welcome(visitor, here):
    here.add(visitor.metadata())
    here.notify(visitor.name, b"welcome")
    assert wait_until(visitor.take)
    here.remove(visitor.name)


@pytest.mark.parametrize("mode", modes(), ids=lambda mode: "none" if mode is None else mode.name.lower())
def test_four_threads(other, names, mode):
    here = Party(names("here"), **config(mode))
    there = other.open(names("there"))
    theirs = there.memory("m", THREADS * SLICE)
    mine = here.memory("m", THREADS * SLICE)
    here.fill("m", 1)
    here.add(there.metadata())
    failures = []

    def work(number):
        at = number * SLICE
        spans = [(mine + at, SLICE)], [(theirs + at, SLICE)]
        try:
            kept = here.request("WRITE", there.name, *spans)
            for i in range(ROUNDS):
                assert here.run(kept, b"%d kept %d" % (number, i)) == "DONE"
                assert here.move("READ", there.name, *spans, b"%d new %d" % (number, i)) == "DONE"
                here.notify(there.name, b"%d lone %d" % (number, i))
        except Exception as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    # Meanwhile the main thread does what vLLM's does: notifications are asked for, other peers come and go.
    for thread in threads:
        while thread.is_alive():
            here.take()
            if locks(mode):
                welcome(Party(names("visitor")), here)
            thread.join(0.001)
    assert failures == []
    expected = {b"%d %s %d" % (n, kind, i) for n in range(THREADS) for kind in (b"kept", b"new", b"lone") for i in range(ROUNDS)}
    came = [message for _, message in there.notes(len(expected))]
    assert len(came) == len(expected) and set(came) == expected
    assert there.differs("m", 1) == 0
