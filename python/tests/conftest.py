# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import pytest
from other_process import Other, Pair

from uccl import p2p


@pytest.fixture(scope="session")
def _shared_other():
    other = Other()
    yield other
    other.stop()


@pytest.fixture
def other(_shared_other):
    """A second process, kept between tests; each test opens its own endpoint there."""
    return _shared_other


@pytest.fixture(params=["best", "tcp"])
def pair(request, other):
    """Two connected endpoints, over the best route on one host and over TCP."""
    made = Pair(other, **({} if request.param == "best" else {"transports": ["tcp"]}))
    yield made
    made.close()


@pytest.fixture
def fast_pair(other):
    """Two connected endpoints over the best route, for what does not depend on it."""
    made = Pair(other)
    yield made
    made.close()


@pytest.fixture
def ep():
    """An endpoint alone."""
    with p2p.Endpoint(0, 2) as endpoint:
        yield endpoint
