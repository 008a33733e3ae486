# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The variables that users of other engines with this interface have set."""

import os
import socket

import pytest
from test_import import run_python

# Set by users for other engines; they are about what this one does otherwise, and must do no harm.
WITHOUT_EFFECT = {
    "UCCL_RCMODE": "1",
    "UCCL_NUM_ENGINES": "4",
    "UCCL_CHUNK_SIZE_KB": "64",
    "UCCL_PORT_ENTROPY": "32",
    "UCCL_NUM_GPU_RT_STREAMS": "4",
    "UCCL_IB_HCA": "mlx5_0",
    "UCCL_P2P_RDMA_GID_INDEX": "3",
    "UCCL_P2P_RDMA_SL": "3",
    "UCCL_P2P_RDMA_TC": "104",
    "UCCL_P2P_RDMA_DEV": "mlx5_0",
    "UCCL_P2P_RDMA_MAX_RD_ATOMIC": "16",
    "UCCL_P2P_RDMA_MAX_DEST_RD_ATOMIC": "16",
    "UCCL_P2P_RDMA_CC": "none",
    "UCCL_P2P_MAX_INFLIGHT_OPS": "256",
    "UCCL_P2P_COMPRESS_STRATEGY": "none",
    "UCCL_RDMA_ADAPTIVE_SLEEP": "1",
    "UCCL_NCCL_SO": "/nowhere/libnccl.so.2",
    "UCCL_IBV_SO": "/nowhere/libibverbs.so.1",
    "UCCL_CXI_DEVICE_INDEX": "0",
}

TAKES_EFFECT = {"UCCL_P2P_RDMA_GID_INDEX"}  # of RDMA, where there is any

_WRITE = """
import numpy as np
from uccl import p2p
with p2p.Endpoint(0, 1) as a, p2p.Endpoint(1, 1) as b:
    ok, conn = a.add_remote_endpoint(b.get_metadata())
    assert ok, p2p.last_error()
    x, y = np.full(64, 7, np.uint8), np.zeros(64, np.uint8)
    blob = b.advertise(b.reg(y.ctypes.data, 64)[1], y.ctypes.data, 64)[1]
    assert a.write(conn, a.reg(x.ctypes.data, 64)[1], x.ctypes.data, 64, blob), p2p.last_error()
    assert (y == 7).all()
    print(*sorted({row["transport"] for row in a.routes(conn) if row["transport"]}))
"""

_ADDRESS = """
from uccl import p2p
with p2p.Endpoint(0, 1) as ep:
    address, port, _ = ep.parse_metadata(ep.get_metadata())
assert address == p2p.get_oob_ip()
print(address, port)
"""


def run(code, **variables):
    return run_python(code, env={**os.environ, **variables})


def output(code, **variables):
    done = run(code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_has_no_effect_does_no_harm():
    assert output(_WRITE, **WITHOUT_EFFECT) == output(_WRITE)


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "lo"},
        {"UCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_IFNAME": "absent"},
        {"NCCL_SOCKET_IFNAME": "absent", "UCCL_P2P_LISTEN_ADDRESS": "127.0.0.1"},
    ],
    ids=lambda variables: " ".join(variables),
)
def test_interfaces_to_announce(variables):
    assert output(_ADDRESS, **variables)[0] == "127.0.0.1"


def test_interfaces_that_are_not_there():
    done = run(_ADDRESS, UCCL_SOCKET_IFNAME="absent")
    assert done.returncode != 0
    assert '"absent"' in done.stderr and "lo" in done.stderr


def test_a_communicator_elsewhere_changes_nothing():
    assert output(_ADDRESS, NCCL_COMM_ID="192.0.2.7:1234")[0] == output(_ADDRESS)[0]


@pytest.mark.parametrize("name", ["UCCL_TCP_OOB_PORT", "UCCL_TCPX_OOB_PORT", "UCCL_P2P_PORT"])
def test_ports(name):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    assert output(_ADDRESS, NCCL_SOCKET_IFNAME="lo", **{name: port}) == ["127.0.0.1", port]


@pytest.mark.parametrize("variables", [{"UCCL_P2P_DISABLE_IPC": "1"}, {"UCCL_P2P_TRANSPORT": "tcp"}, {"UCCL_P2P_TRANSPORT": "nccl"}], ids=str)
def test_network_only(variables):
    assert output(_WRITE, **variables) == ["tcp"]


@pytest.mark.parametrize("name", ["cxi", "efa"])
def test_fabrics_without_a_transport(name):
    done = run(_WRITE, UCCL_P2P_TRANSPORT=name)
    assert done.returncode != 0
    assert f"'{name}'" in done.stderr and "UCCL_P2P_TRANSPORT=tcp" in done.stderr


def test_rdma_where_there_is_none():
    done = run(_WRITE, UCCL_P2P_TRANSPORT="ib")
    if done.returncode == 0:
        pytest.skip("there is RDMA")
    assert "rdma" in done.stderr and "without UCCL_P2P_TRANSPORT" in done.stderr


def test_a_transport_that_does_not_exist():
    done = run(_WRITE, UCCL_P2P_TRANSPORT="pigeons")
    assert done.returncode != 0
    assert "pigeons" in done.stderr and "tcp" in done.stderr


def test_keywords_are_the_variables_in_small_letters():
    code = """
from uccl import p2p
with p2p.Endpoint(0, 1, transports=[], interfaces="lo", disable_ipc=True, gpu_blocks=32, spin_us=0) as ep:
    print(ep.transports()["cma"])
"""
    # What a call says wins over the environment, the empty list too.
    assert "left" in output(code, UCCL_P2P_TRANSPORT="tcp", UCCL_P2P_GPU_BLOCKS="8")


def test_what_has_no_effect_is_named_at_debug_level():
    named = run(_ADDRESS, UCCL_P2P_LOG_LEVEL="debug", **WITHOUT_EFFECT).stderr
    for name in WITHOUT_EFFECT:
        assert (f"{name} is set and changes nothing" in named) == (name not in TAKES_EFFECT), name
    assert "UCCL_RCMODE" not in run(_ADDRESS, **WITHOUT_EFFECT).stderr


@pytest.mark.parametrize("level", ["INFO", "WARNING", "ERROR", "FATAL", "0", "3"])
def test_log_levels(level):
    output(_ADDRESS, UCCL_P2P_LOG_LEVEL=level)
