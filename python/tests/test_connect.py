# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
import ctypes
import os
import random
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from other_process import Pair, until_asleep

from uccl import p2p

NO_CONNECTION = 2**64 - 1


def where(metadata):
    address, port, gpu = p2p.Endpoint.parse_metadata(metadata)
    return address, gpu, port


def test_accept_tells_what_the_peer_has_in_its_metadata(other, ep):
    other.open(gpu=6)
    theirs = other.call("get_metadata")
    mine = ep.parse_metadata(ep.get_metadata())
    other.begin("call", "connect", mine[0], mine[2], mine[1])
    ok, address, gpu, conn = ep.accept()
    assert (ok, address, gpu, conn) == (True, ep.parse_metadata(theirs)[0], 6, 0)
    assert other.result()[0]
    assert ep.peer(conn) == {"address": address, "port": ep.parse_metadata(theirs)[1], "gpu_idx": 6, "identity": ""}


def test_done_while_another_thread_held_the_interpreter(other, ep):
    """The call wakes up to look for signals and then has to wait for the interpreter; meanwhile the peer answers."""
    address, gpu, port = where(other.open())
    hold = ctypes.PyDLL(None).usleep  # does not let the interpreter go
    interval = sys.getswitchinterval()
    results = []
    connecting = threading.Thread(target=lambda: results.append(ep.connect(address, gpu, port)))
    os.kill(other.pid(), signal.SIGSTOP)
    connecting.start()
    until_asleep(os.getpid(), connecting.native_id)
    try:
        sys.setswitchinterval(100)
        hold(200_000)
        os.kill(other.process.pid, signal.SIGCONT)
        hold(300_000)
    finally:
        sys.setswitchinterval(interval)
    connecting.join(30)
    assert results and results[0][0], p2p.last_error()


@pytest.mark.parametrize("spelling", ["remote_gpu_idx", "remote_gpu_bdf"])
def test_both_spellings(other, ep, spelling):
    address, gpu, port = where(other.open())
    gpu = gpu if spelling == "remote_gpu_idx" else "0000:18:00.0"
    ok, conn = ep.connect(remote_ip_addr=address, remote_port=port, **{spelling: gpu})
    assert ok and conn == 0
    assert other.call("accept", timeout=10)[0]


def test_without_a_port_finds_the_endpoint_of_that_gpu_on_this_host(other, ep):
    address, gpu, _ = where(other.open(gpu=41))
    ok, conn = ep.connect(address, remote_gpu_idx=gpu)
    assert ok, p2p.last_error()
    assert other.call("accept", timeout=10)[2] == 0


def test_without_a_port_and_endpoint_says_what_to_do(ep):
    ok, conn = ep.connect("192.0.2.7", remote_gpu_idx=3)
    assert (ok, conn) == (False, NO_CONNECTION)
    assert "UCCL_P2P_PORT" in p2p.last_error() and "UCCL_P2P_PORT" in ep.last_error()


def test_nobody_listens(ep):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    start = time.monotonic()
    assert ep.connect("127.0.0.1", 0, port) == (False, NO_CONNECTION)
    assert time.monotonic() - start < 15
    assert p2p.last_error()


def test_a_listener_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as server, p2p.Endpoint(0, 1, connect_timeout=0.5) as ep:
        start = time.monotonic()
        assert ep.connect("127.0.0.1", 0, server.getsockname()[1]) == (False, NO_CONNECTION)
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("port", [0, -2, 65536, 10**9])
def test_ports_that_do_not_exist(ep, port):
    assert ep.connect("127.0.0.1", 0, port) == (False, NO_CONNECTION)


def test_accept_in_time(ep):
    assert ep.accept(timeout=0) == (False, "", -1, NO_CONNECTION)
    assert ep.accept_local(timeout=0.1) == (False, -1, NO_CONNECTION)
    assert "in time" in p2p.last_error()
    with pytest.raises(ValueError, match="timeout"):
        ep.accept(timeout=-1)


def test_connect_local_needs_no_accept_local(other, ep):
    other.open(gpu=77)
    ok, conn = ep.connect_local(77)
    assert ok, p2p.last_error()
    _, pointer = other.memory("target", 64)
    blob = other.call("advertise_ipc", conn, pointer, 64)[1]
    source = bytearray(b"x" * 64)
    import numpy as np

    array = np.frombuffer(source, np.uint8)
    assert ep.write_ipc(conn, array.ctypes.data, 64, blob), p2p.last_error()
    assert other.contents("target") == bytes(source)


def test_accept_and_accept_local_get_their_own(other, ep):
    """The queues do not mix, whichever connection came first."""
    mine = ep.parse_metadata(ep.get_metadata())
    other.open(gpu=5)
    assert other.call("connect_local", 0, mine[1])[0]
    assert other.call("connect", mine[0], 0, mine[1])[0]
    ok, address, gpu, first = ep.accept(timeout=10)
    assert (ok, address, gpu) == (True, mine[0], 5)
    ok, gpu, second = ep.accept_local(timeout=10)
    assert (ok, gpu) == (True, 5)
    assert first != second


def test_connect_local_by_either_spelling_and_to_nobody(other, ep):
    other.open(gpu=78)
    assert ep.connect_local(remote_gpu_idx=78)[0]
    assert ep.connect_local(remote_gpu_bdf="78")[0]
    with p2p.Endpoint(0, 1, connect_timeout=0.3) as hasty:
        start = time.monotonic()
        assert hasty.connect_local(60001) == (False, NO_CONNECTION)
        assert 0.25 < time.monotonic() - start < 5
        assert "60001" in p2p.last_error()
    assert ep.connect_local("0000:ff:1f.7") == (False, NO_CONNECTION)


def test_connect_local_before_the_endpoint_is_there(other, ep):
    results = []
    connecting = threading.Thread(target=lambda: results.append(ep.connect_local(81)))
    connecting.start()
    until_asleep(os.getpid(), connecting.native_id)
    other.open(gpu=81)
    connecting.join(20)
    assert results and results[0][0]
    assert other.call("accept_local", timeout=10)[0]


def test_loopback_reaches_an_endpoint_that_announces_another_address(other, ep):
    _, gpu, port = where(other.open())
    assert ep.connect("127.0.0.1", gpu, port)[0], p2p.last_error()
    assert other.call("accept", timeout=10)[0]


def test_the_newest_process_of_an_index_wins(other, ep):
    with p2p.Endpoint(79, 1):
        other.open(gpu=79)
        with p2p.Endpoint(79, 1):
            assert ep.connect_local(79)[0]
            assert other.call("accept_local", timeout=10)[0]


def test_a_killed_process_is_not_found():
    from other_process import Other

    other = Other()
    other.open(gpu=80)
    other.kill()
    with p2p.Endpoint(0, 1, connect_timeout=0.3) as ep:
        assert not ep.connect_local(80)[0]
        assert "GPU 80" in p2p.last_error()


def test_remote_endpoints_by_metadata(other, ep):
    metadata = other.open()
    assert other.call("start_passive_accept") is True
    ok, conn = ep.add_remote_endpoint(metadata)
    assert ok, p2p.last_error()
    assert ep.add_remote_endpoint(metadata_bytes=metadata) == (True, conn)
    assert not other.call("accept", timeout=0.2)[0]  # it is served without
    assert ep.remove_remote_endpoint(conn) is True
    assert ep.remove_remote_endpoint(conn) is False
    with pytest.raises(RuntimeError, match=f"Invalid conn_id {conn}"):
        ep.transfer(conn, "write", [], [])
    again = ep.add_remote_endpoint(metadata)
    assert again[0] and again[1] != conn
    with pytest.raises(RuntimeError):
        ep.add_remote_endpoint(b"short")


def test_without_passive_accept_they_wait_for_accept(other, ep):
    assert ep.add_remote_endpoint(other.open())[0]
    assert other.call("accept", timeout=10)[0]


def test_accept_local_meets_an_endpoint_by_metadata_of_this_host(other, ep):
    ok, conn = ep.add_remote_endpoint(other.open())
    assert ok, p2p.last_error()
    ok, gpu, theirs = other.call("accept_local", timeout=10)
    assert (ok, gpu) == (True, 0)
    assert not other.call("accept", timeout=0.2)[0]


def message(pair_of, size=64, value=0):
    """Registered memory: (array, arguments of send and recv after the connection)."""
    import numpy as np

    array = np.full(size, value, np.uint8)
    ok, mr_id = pair_of.reg(array.ctypes.data, size)
    assert ok, p2p.last_error()
    return array, (mr_id, array.ctypes.data, size)


@pytest.mark.parametrize("by", ["connect", "add_remote_endpoint"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_both_connect_and_neither_accepts(other, ep, by, asynchronous):
    metadata, mine = other.open(), ep.get_metadata()
    if by == "connect":
        ok, conn = ep.connect(*where(metadata))
        address, gpu, port = where(mine)
        their_ok, their_conn = other.call("connect", address, gpu, port)
    else:
        ok, conn = ep.add_remote_endpoint(metadata)
        their_ok, their_conn = other.call("add_remote_endpoint", mine)
        for start_passive_accept in (ep.start_passive_accept, lambda: other.call("start_passive_accept")):
            assert start_passive_accept()
    assert ok and their_ok
    theirs, pointer = other.memory("m", 64, 9)
    array, arguments = message(ep)
    for size in (64, 32):  # more than once
        array[:] = 0
        other.begin("call", "send", their_conn, theirs, pointer, size)
        if asynchronous:
            ok, transfer = ep.recv_async(conn, *arguments)
            assert ok and ep.wait(transfer, 20) == size
        else:
            assert ep.recv(conn, *arguments), p2p.last_error()
        assert other.result()
        assert (array[:size] == 9).all() and (array[size:] == 0).all()
    array[:] = 4
    other.begin("call", "recv", their_conn, theirs, pointer, 64)
    assert ep.send(conn, *arguments), p2p.last_error()
    assert other.result()
    assert other.contents("m") == b"\x04" * 64


def test_the_peer_connects_when_this_side_receives_already(other, ep):
    ok, conn = ep.connect(*where(other.open()))
    assert ok
    array, arguments = message(ep)
    results = []
    receiving = threading.Thread(target=lambda: results.append(ep.recv(conn, *arguments)))
    receiving.start()
    until_asleep(os.getpid(), receiving.native_id)
    address, gpu, port = where(ep.get_metadata())
    ok, their_conn = other.call("connect", address, gpu, port)
    assert ok
    theirs, pointer = other.memory("m", 64, 9)
    assert other.call("send", their_conn, theirs, pointer, 64), other.last_error()
    receiving.join(20)
    assert results == [True] and (array == 9).all()


def test_an_asynchronous_receive_finds_what_another_thread_is_just_taking(ep):
    """That thread waits for a connection of another kind, and so takes this one for all."""
    with p2p.Endpoint(1, 2) as peer:
        accepting = threading.Thread(target=lambda: ep.accept_local(timeout=60))
        accepting.start()
        try:
            for _ in range(50):
                ok, conn = ep.connect(*where(peer.get_metadata()))
                their_ok, their_conn = peer.connect(*where(ep.get_metadata()))
                assert ok and their_ok, p2p.last_error()
                array, arguments = message(ep)
                theirs, their_arguments = message(peer, value=9)
                ok, transfer = ep.recv_async(conn, *arguments)
                assert ok and peer.send_async(their_conn, *their_arguments)[0], p2p.last_error()
                assert ep.wait(transfer, 10) == 64
                assert (array == 9).all() and (theirs == 9).all()
        finally:
            address, gpu, port = where(ep.get_metadata())
            assert peer.connect_local(gpu, port)[0]
            accepting.join(20)
        assert not accepting.is_alive()


def got(endpoint, conn, seconds=20):
    """The byte that a message brings by recv_async, or None."""
    array, arguments = message(endpoint)
    ok, transfer = endpoint.recv_async(conn, *arguments)
    return int(array[0]) if ok and endpoint.wait(transfer, seconds) else None


def give(endpoint, conn, value):
    """Sends without waiting for the receiver; what is sent has to be kept."""
    array, arguments = message(endpoint, value=value)
    assert endpoint.send_async(conn, *arguments)[0], p2p.last_error()
    return array


def test_crossing_connections_stay_pairs_when_others_end(ep):
    with p2p.Endpoint(1, 2) as peer:
        mine = [ep.connect(*where(peer.get_metadata()))[1] for _ in range(3)]
        theirs = [peer.connect(*where(ep.get_metadata()))[1] for _ in range(3)]
        kept = [give(peer, conn, 7 + index) for index, conn in enumerate(theirs[:2])]
        assert [got(ep, conn) for conn in mine[:2]] == [7, 8]
        assert ep.remove_remote_endpoint(mine[0])  # the peer's half of this pair stays open
        kept.append(give(peer, theirs[1], 9))
        assert got(ep, mine[1]) == 9
        kept.append(give(peer, theirs[2], 10))
        assert got(ep, mine[2]) == 10
        del kept


def test_connections_that_threads_make_at_once_are_the_same_pairs_on_both_sides():
    for _ in range(40):
        with p2p.Endpoint(0, 2) as one, p2p.Endpoint(1, 2) as two, ThreadPoolExecutor(16) as pool:
            dials = [
                [pool.submit(here.connect, *where(there.get_metadata())) for _ in range(8)]
                for here, there in ((one, two), (two, one))
            ]
            mine, theirs = ([dial.result(20)[1] for dial in dialled] for dialled in dials)
            kept = [give(one, conn, index + 1) for index, conn in enumerate(mine)]
            asked = [got(two, conn) for conn in theirs]
            assert sorted(asked) == list(range(1, 9))
            kept += [give(two, conn, value) for conn, value in zip(theirs, asked, strict=True)]
            assert [got(one, conn) for conn in mine] == list(range(1, 9))
            del kept


@pytest.mark.parametrize("asynchronous", [False, True])
def test_each_side_serves_whom_it_accepts_and_asks_where_it_connected(asynchronous):
    """An answer comes by the connection that asked, also while the peer's own question is on its way here."""
    wrong, stop = [], threading.Event()

    def receive(endpoint, conn):
        if asynchronous:
            return got(endpoint, conn)
        array, arguments = message(endpoint)
        return int(array[0]) if endpoint.recv(conn, *arguments) else None

    def answer(endpoint, conn):
        array, arguments = message(endpoint, value=(receive(endpoint, conn) or 0) + 100)
        endpoint.send(conn, *arguments)

    def serve(endpoint, pool):
        while not stop.is_set():
            ok, _, _, conn = endpoint.accept(timeout=0.1)
            if ok:
                pool.submit(answer, endpoint, conn)

    def ask(endpoint, peer, first):
        for value in range(first, first + 10):
            ok, conn = endpoint.connect(*where(peer.get_metadata()))
            array, arguments = message(endpoint, value=value)
            if not ok or not endpoint.send(conn, *arguments) or (told := receive(endpoint, conn)) != value + 100:
                wrong.append((value, told if ok else p2p.last_error()))

    with p2p.Endpoint(0, 2) as one, p2p.Endpoint(1, 2) as two, ThreadPoolExecutor(32) as pool:
        assert not one.accept(timeout=0)[0] and not two.accept(timeout=0)[0]  # both are such as accept
        servers = [pool.submit(serve, endpoint, pool) for endpoint in (one, two)]
        try:
            sides = ((one, two, 1), (two, one, 11))
            for asker in [pool.submit(ask, *side) for side in sides for _ in range(3)]:
                asker.result(50)
        finally:
            stop.set()
        assert [server.result(20) for server in servers] == [None, None]
    assert not wrong


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_accepts_one_peer_may_cross_with_another(other, ep, asynchronous):
    with p2p.Endpoint(1, 2) as third:
        assert third.connect(*where(ep.get_metadata()))[0]
        assert ep.accept(timeout=10)[0]
        ok, conn = ep.connect(*where(other.open()))
        address, gpu, port = where(ep.get_metadata())
        their_ok, their_conn = other.call("connect", address, gpu, port)
        assert ok and their_ok
        theirs, pointer = other.memory("m", 64, 9)
        other.begin("call", "send", their_conn, theirs, pointer, 64)
        if asynchronous:
            assert got(ep, conn) == 9
        else:
            array, arguments = message(ep)
            assert ep.recv(conn, *arguments), p2p.last_error()
            assert (array == 9).all()
        assert other.result()


def test_an_asynchronous_receive_waits_until_accept_had_its_time(ep):
    """The peer's connection is the last of many that come up here: accept() has a second from then on."""
    with p2p.Endpoint(1, 2) as peer, p2p.Endpoint(2, 2) as third:
        assert not ep.accept(timeout=0)[0]
        ok, conn = ep.connect(*where(peer.get_metadata()))
        assert ok and all(third.connect(*where(ep.get_metadata()))[0] for _ in range(100))
        ok, their_conn = peer.connect(*where(ep.get_metadata()))
        assert ok
        kept = give(peer, their_conn, 9)
        assert got(ep, conn, 5) == 9
        del kept


def test_two_processes_connect_to_each_other_at_any_moment(other):
    moment = random.Random(5)
    for _ in range(30):
        with p2p.Endpoint(0, 2) as ep:
            metadata = other.open()
            address, gpu, port = where(ep.get_metadata())
            if moment.random() < 0.5:
                other.begin("call", "connect", address, gpu, port)
                ok, conn = ep.connect(*where(metadata))
                their_ok, their_conn = other.result()
            else:
                ok, conn = ep.connect(*where(metadata))
                their_ok, their_conn = other.call("connect", address, gpu, port)
            assert ok and their_ok
            value = moment.randrange(1, 256)
            theirs, pointer = other.memory("m", 64, value)
            other.begin("call", "send", their_conn, theirs, pointer, 64)
            assert got(ep, conn) == value
            assert other.result()
            kept = give(ep, conn, 3)
            assert other.call("recv", their_conn, theirs, pointer, 64)
            assert other.contents("m") == bytes(kept)


def test_connections_that_cross_and_are_accepted_stay_two(other, ep):
    """Each side sends on what it made and receives on what it accepted."""
    ok, out = ep.connect(*where(other.open()))
    address, gpu, port = where(ep.get_metadata())
    assert ok and other.call("connect", address, gpu, port)[0]
    ok, _, _, into = ep.accept(timeout=10)
    assert ok and into != out
    ok, _, _, their_into = other.call("accept", timeout=10)
    theirs, pointer = other.memory("m", 64, 9)
    array, arguments = message(ep, value=3)
    assert other.call("recv_async", their_into, theirs, pointer, 64)[0]
    assert ep.send(out, *arguments), p2p.last_error()
    assert other.call("wait", 1, 20) == 64
    assert other.contents("m") == b"\x03" * 64


def test_connects_and_accepts_from_a_pool(other, ep):
    count = 8
    mine = ep.parse_metadata(ep.get_metadata())
    theirs = where(other.open())
    with ThreadPoolExecutor(2 * count) as pool:
        accepts = [pool.submit(ep.accept) for _ in range(count)]
        local = [pool.submit(ep.accept_local) for _ in range(count)]
        connects = [pool.submit(ep.connect, *theirs) for _ in range(count)]
        for _ in range(count):
            assert other.call("connect", mine[0], 0, mine[1])[0]
            assert other.call("connect_local", 0, mine[1])[0]
        ids = [f.result(20)[1] for f in connects]
        ids += [f.result(20)[3] for f in accepts] + [f.result(20)[2] for f in local]
    assert len(set(ids)) == 3 * count


def test_unknown_ids(ep):
    assert ep.conn_id_of_rank(3) == NO_CONNECTION
    assert ep.remove_remote_endpoint(12) is False
    assert ep.send(12, 1, 0, 1) is False
    assert "Invalid conn_id 12" in p2p.last_error()
    for call in (ep.peer, ep.routes, ep.stats, ep.take_notifications):
        with pytest.raises(p2p.NotFound, match="12"):
            call(12)


def test_routes_and_stats(other, fast_pair):
    routes = fast_pair.ep.routes(fast_pair.conn)
    host = next(row for row in routes if row["local"] == row["remote"] == "host")
    assert host["transport"] in fast_pair.ep.transports()
    assert host["reason"]
    fast_pair.other.memory("m", 4096)
    array, mr_id, pointer = fast_pair.memory(4096)
    assert fast_pair.ep.write(fast_pair.conn, mr_id, pointer, 4096, fast_pair.other.advertised("m"))
    assert fast_pair.ep.stats()["bytes_written"] == 4096
    moved = {name: value for name, value in fast_pair.ep.stats(fast_pair.conn).items() if name.endswith("_bytes_written")}
    assert sum(moved.values()) == 4096
    assert routes[0]["history"] == ""
    assert fast_pair.ep.stats(fast_pair.conn)["transfers_completed"] >= 1


def test_explain(fast_pair):
    fast_pair.other.memory("m", 4096)
    _, mr_id, _ = fast_pair.memory(4096)
    blob = fast_pair.other.advertised("m")
    told = fast_pair.ep.explain(fast_pair.conn, mr_id, blob)
    host = next(row for row in fast_pair.ep.routes(fast_pair.conn) if row["local"] == row["remote"] == "host")
    assert told["transport"] == host["transport"]
    for passed in told["passed"]:
        assert passed["transport"] in fast_pair.ep.transports()
        assert passed["obstacle"] in ("unusable", "not_carried", "not_registered", "not_shared")
        assert passed["reason"]
    with pytest.raises(RuntimeError, match="no local region"):
        fast_pair.ep.explain(fast_pair.conn, mr_id + 1000, blob)
    with pytest.raises(RuntimeError):
        fast_pair.ep.explain(fast_pair.conn, mr_id, b"too short")


def test_metrics(other, fast_pair):
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    fast_pair.other.memory("m", 4096)
    array, mr_id, pointer = fast_pair.memory(4096)
    assert fast_pair.ep.write(fast_pair.conn, mr_id, pointer, 4096, fast_pair.other.advertised("m"))
    families = {family.name: family for family in parser.text_string_to_metric_families(fast_pair.ep.metrics())}
    (whole,) = families["p2p_endpoint_written_bytes"].samples
    (one,) = families["p2p_connection_written_bytes"].samples
    assert (whole.value, one.value) == (4096, 4096)
    address, port, _ = p2p.Endpoint.parse_metadata(fast_pair.metadata)
    assert one.labels["connection"] == str(fast_pair.conn)
    assert one.labels["peer"].split()[0] == address
    assert one.labels["transport"] in fast_pair.ep.transports()
    assert families["p2p_connections"].samples[0].value == 1
    assert families["p2p_transfers_under_way"].samples[0].value == 0
    assert fast_pair.ep.remove_remote_endpoint(fast_pair.conn)
    families = {family.name: family for family in parser.text_string_to_metric_families(fast_pair.ep.metrics())}
    assert families["p2p_endpoint_written_bytes"].samples[0].value == 4096  # outlives the connection
    assert not families["p2p_connection_written_bytes"].samples


def test_notifications(fast_pair):
    big = bytes(range(256)) * 20_000
    for payload in (b"", b"hello", big):
        assert fast_pair.ep.notify(fast_pair.conn, payload), p2p.last_error()
    assert fast_pair.other.call("take_notifications", fast_pair.their_conn) == [b"", b"hello", big]
    assert fast_pair.other.call("take_notifications", fast_pair.their_conn) == []


def test_close_ends_other_threads_calls():
    ep = p2p.Endpoint(0, 1)
    results = []
    thread = threading.Thread(target=lambda: results.append(ep.accept()))
    thread.start()
    until_asleep(os.getpid(), thread.native_id)
    ep.close()
    thread.join(10)
    assert not thread.is_alive()
    assert results[0][0] is False
    assert ep.closed
    ep.close()
    with pytest.raises(p2p.NotFound, match="closed"):
        ep.accept()


def test_context_manager_closes(other):
    with p2p.Endpoint(0, 1) as ep:
        assert repr(ep) == "<UCCL P2P Endpoint>"
    assert ep.closed


def test_many_connections_come_and_go(other, ep):
    target = where(other.open())
    for _ in range(20):
        ok, conn = ep.connect(*target)
        assert ok, p2p.last_error()
        assert ep.remove_remote_endpoint(conn)


def test_pairs_of_endpoints_in_one_process():
    with p2p.Endpoint(0, 1) as a, p2p.Endpoint(1, 1) as b:
        ok, conn = a.connect(*where(b.get_metadata()))
        assert ok, p2p.last_error()
        assert b.accept(timeout=10)[0]


def test_options_reach_the_engine(other):
    pair = Pair(other, transports=["tcp"])
    assert {row["transport"] for row in pair.ep.routes(pair.conn) if row["transport"]} == {"tcp"}
    pair.close()
    with pytest.raises(p2p.Error, match="carrier_pigeon"):
        p2p.Endpoint(0, 1, transports=["carrier_pigeon"])
