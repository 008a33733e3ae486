# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What a publisher and subscribers of weights, each a process, tell of themselves at one place, and p2p-top's lines of it."""

import contextlib
import re
import subprocess
import sys
import time

import pytest
from test_metrics import ROOT, free_place, page, run_top

from uccl import top

_BYTES = 4 << 20
_MEMBER = """
import sys
import numpy as np
from uccl.weights import Publisher, Subscriber

kind, place, *publisher = sys.argv[1:]
options = {"listen_address": "127.0.0.1", "metrics": place}
tensors = {"w": np.zeros(%d, np.uint8)}
one = Publisher(**options) if kind == "publish" else Subscriber(publisher[0], tensors, chunk_bytes=65536, **options)
print(one.place, flush=True)
for line in sys.stdin:
    if kind == "publish":
        tensors["w"][:] = np.arange(%d) %% 251
        one.publish(7, tensors)
    else:
        one.stage(7, timeout=60)
        one.commit()
        assert (tensors["w"] == np.arange(%d) %% 251).all()
    print("done", flush=True)
""" % (_BYTES, _BYTES, _BYTES)


class Member:
    def __init__(self, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.place = self.process.stdout.readline().strip()
        assert self.place, "the member has ended"

    def begin(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def finish(self):
        assert self.process.stdout.readline() == "done\n"

    def kill(self):
        self.process.kill()
        self.process.wait()


def until(place, holds):
    """The weights at the place, once ``holds`` of them."""
    deadline = time.monotonic() + 60
    rows = []
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            rows = top.weights(top.fetch(place), None)
            if holds(rows):
                return rows
    raise AssertionError(rows)


@pytest.fixture
def members():
    """A place, the publisher and two subscribers that wait for its version."""
    place = free_place()
    made = []
    try:
        made.append(Member("publish", place))
        for _ in range(2):
            made.append(Member("subscribe", place, made[0].place))
            made[-1].begin()
        yield place, made
    finally:
        for one in made:
            one.kill()


def test_top_has_a_line_for_each_member_of_a_version(members):
    place, (publisher, *subscribers) = members
    rows = until(place, lambda rows: [row.waits for row in rows] == ["an offer", "an offer"])
    assert {(row.version, row.role, row.held, row.size) for row in rows} == {("7", "subscriber", 0, _BYTES)}
    publisher.begin()
    for one in (publisher, *subscribers):
        one.finish()
    # What is given is counted once those who took it have said so.
    # Whose function is late is left out of a page, so each look waits for a page with all.
    rows = until(place, lambda rows: len(rows) == 3 and rows[0].copies == 2 and given(place) == 2 * _BYTES)
    assert [row.role for row in rows] == ["publisher", "subscriber", "subscriber"]
    assert [(row.held, row.size, row.waits) for row in rows] == 3 * [(_BYTES, _BYTES, "")]
    names = {one.place.replace(":", " ") for one in (publisher, *subscribers)}
    assert {row.endpoint for row in rows} == names
    came = {row.endpoint: 0 if row.role == "publisher" else _BYTES for row in rows}
    until(place, lambda _: received(place, names) == came)

    deadline = time.monotonic() + 60
    shown = run_top(place, "--once")
    while shown.stdout.count("\n7 ") < 3 and time.monotonic() < deadline:
        shown = run_top(place, "--once")
    assert shown.returncode == 0, shown.stderr
    heads, *lines = [line.split() for line in shown.stdout.split("\nweights", 1)[1].splitlines() if line]
    assert heads[:2] == ["role", "member"]
    assert [line[:2] for line in lines] == [["7", "publisher"], ["7", "subscriber"], ["7", "subscriber"]]
    assert all("4.0 MiB  4.0 MiB  100" in line for line in shown.stdout.splitlines() if line.startswith("7 "))
    publisher.kill()
    until(place, lambda rows: [row.role for row in rows] == 2 * ["subscriber"])


def received(place, names):
    bytes_of = dict.fromkeys(names, 0)
    for labels, value in top.fetch(place).named("p2p_weights_received_bytes_total"):
        assert labels["from"].replace(":", " ") in names - {labels["endpoint"]}
        bytes_of[labels["endpoint"]] += value
    return bytes_of


def given(place):
    return sum(value for _, value in top.fetch(place).named("p2p_weights_given_bytes_total"))


def test_promtool_has_nothing_to_say_of_weights(members):
    found = subprocess.run([ROOT / "scripts" / "promtool.sh"], capture_output=True, text=True, timeout=50, check=False)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip())
    place, (publisher, *subscribers) = members
    publisher.begin()
    for one in (publisher, *subscribers):
        one.finish()
    deadline = time.monotonic() + 60
    text = ""
    while len(re.findall(r"^p2p_weights_held_bytes\{process=", text, re.MULTILINE)) < 3:
        assert time.monotonic() < deadline, text
        _, text = page(place)
    checked = subprocess.run(
        [found.stdout.strip(), "check", "metrics"], input=text, capture_output=True, text=True, timeout=50, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_rates_are_of_the_time_between_two_looks():
    def scrape(at, came, given_on):
        labels = 'process="9",endpoint="a 1",version="7"'
        return top.Scrape.of(
            f'p2p_weights_bytes{{{labels},role="subscriber"}} 4000\n'
            f"p2p_weights_held_bytes{{{labels}}} {came}\n"
            f'p2p_weights_received_bytes_total{{{labels},from="b:2"}} {came}\n'
            f"p2p_weights_given_bytes_total{{{labels}}} {given_on}\n"
            f'p2p_weights_waiting{{{labels},on="b:2"}} 1\n',
            at,
        )

    (row,) = top.weights(scrape(12.0, 3000, 500), scrape(10.0, 1000, 100))
    assert (row.came, row.given, row.waits, row.process) == (1000.0, 200.0, "b:2", "9")
    assert top.weights_table([row]).splitlines()[1].split()[:6] == ["7", "subscriber", "a", "1", "-", "b:2"]
    assert top.weights(scrape(12.0, 3000, 500), None)[0].came is None
    assert top.weights_table([]) == ""
