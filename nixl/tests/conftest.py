# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import itertools
from types import SimpleNamespace

import pytest
from other_process import Other
from party import Party

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _kept():
    others = []
    yield others
    for other in others:
        other.stop()


@pytest.fixture
def other(_kept):
    """A second process, kept between tests; each test makes its own agents there."""
    if _kept and not _kept[-1].idle:
        _kept.pop().kill()
    if not _kept:
        _kept.append(Other())
    yield _kept[-1]
    if _kept[-1].idle:
        _kept[-1].run("close")


@pytest.fixture
def mortal():
    """A second process that the test may kill."""
    made = Other()
    yield made
    made.stop()


@pytest.fixture
def names():
    """Agent names that no other test has."""
    return lambda role: f"{role}-{next(_numbers)}"


@pytest.fixture
def joined(other, names):
    """Makes two agents that know each other's memory: ``here`` and ``there``, with ``size`` bytes each."""

    def make(size=1 << 20, process=None, **parameters):
        here = Party(names("here"), parameters)
        there = (process or other).open(names("there"), parameters)
        mine = here.memory("m", size)
        theirs = there.memory("m", size)
        assert here.add(there.metadata()) == there.name
        assert there.add(here.metadata()) == here.name
        return SimpleNamespace(here=here, there=there, mine=mine, theirs=theirs, size=size)

    return make


@pytest.fixture(params=["auto", "tcp"])
def transport(request):
    """The best route on one host, and TCP."""
    return request.param
