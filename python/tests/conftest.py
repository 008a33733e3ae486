# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import os

import pytest
from other_process import Other, Pair

from uccl import p2p


@pytest.fixture(scope="session")
def _kept():
    others = []
    yield others
    for other in others:
        other.stop()


@pytest.fixture
def other(_kept):
    """A second process, kept between tests; each test opens its own endpoint there."""
    if _kept and not _kept[-1].idle:
        _kept.pop().kill()
    if not _kept:
        _kept.append(Other())
    return _kept[-1]


def connected(other, **options):
    made = Pair(other, **options)
    required = os.environ.get("P2P_REQUIRED_ROUTE")
    if required and not options:
        routes = made.ep.routes(made.conn)
        host = next(row for row in routes if row["local"] == row["remote"] == "host")
        assert host["transport"] == required, routes
    return made


@pytest.fixture(params=["best", "tcp"])
def pair(request, other):
    """Two connected endpoints, over the best route on one host and over TCP."""
    made = connected(other, **({} if request.param == "best" else {"transports": ["tcp"]}))
    yield made
    made.close()


@pytest.fixture
def fast_pair(other):
    """Two connected endpoints over the best route, for what does not depend on it."""
    made = connected(other)
    yield made
    made.close()


@pytest.fixture
def ep():
    """An endpoint alone."""
    with p2p.Endpoint(0, 2) as endpoint:
        yield endpoint
