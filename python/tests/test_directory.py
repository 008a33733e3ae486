# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.directory: every driver against the real thing, between two processes where it is of use to several."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import etcd_server
import numpy as np
import pytest
from trickling import trickling

from uccl import directory, p2p
from uccl.directory import etcd as driver

# Seconds; the shortest that is taken.
LEASE = 1.0


@contextmanager
def etcd(folder, port):
    with etcd_server.etcd(folder, port) as server:
        with directory.use(f"etcd://127.0.0.1:{port}") as names:
            wait_for(lambda: reachable(names), "etcd")
        yield server


def reachable(names):
    try:
        names.entries()
        return True
    except directory.DirectoryError:
        return False


def wait_for(true, what, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture(params=["folder", "tcpstore", "etcd"])
def where(request, tmp_path):
    if request.param == "folder":
        yield f"folder://{tmp_path}/names"
    elif request.param == "tcpstore":
        distributed = pytest.importorskip("torch.distributed")
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield f"tcpstore://127.0.0.1:{store.port}"
    else:
        port = etcd_server.free_port()
        with etcd(tmp_path / "etcd", port):
            yield f"etcd://127.0.0.1:{port}/of/tests"


PEER = """
import sys
import numpy as np
from uccl import directory, p2p
with directory.use(sys.argv[1], lease=1.0) as names, p2p.Endpoint(3, 1, listen_address='127.0.0.1') as ep:
    names.publish('decode/0', ep)
    print('ready', flush=True)
    ok, _, _, conn = ep.accept(timeout=60)
    assert ok, p2p.last_error()
    array = np.zeros(100_000, np.uint8)
    mr = ep.reg(array.ctypes.data, array.nbytes)[1]
    assert ep.recv(conn, mr, array.ctypes.data, array.nbytes), p2p.last_error()
    assert (array == 7).all()
    print('got it', flush=True)
    sys.stdin.read()
"""


@contextmanager
def peer(where):
    process = subprocess.Popen(
        [sys.executable, "-c", PEER, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def send(endpoint, connection):
    array = np.full(100_000, 7, np.uint8)
    mr = endpoint.reg(array.ctypes.data, array.nbytes)[1]
    assert endpoint.send(connection, mr, array.ctypes.data, array.nbytes), p2p.last_error()


def test_two_processes_meet_and_who_dies_is_gone_with_its_lease(where):
    with directory.use(where, LEASE) as names, p2p.Endpoint(0, 1, listen_address="127.0.0.1") as endpoint:
        with pytest.raises(LookupError, match="decode/0"):
            names.lookup("decode/0")
        with peer(where) as process:
            found = names.lookup("decode/0", timeout=10)
            assert (found.name, found.address, found.gpu) == ("decode/0", "127.0.0.1", 3)
            assert names.entries() == [found]
            send(endpoint, found.connect(endpoint))
            assert process.stdout.readline() == "got it\n"
            time.sleep(2 * LEASE)  # a lease or two
            assert names.lookup("decode/0") == found
        wait_for(lambda: not names.entries(), "the lease of one that was killed", seconds=20)
        with pytest.raises(LookupError):
            names.lookup("decode/0")


def test_who_looks_up_waits_for_who_publishes_later(where):
    with directory.use(where, LEASE) as names, directory.use(where, LEASE) as others:
        timer = threading.Timer(0.3, lambda: others.publish("late", "10.0.0.1:5"))
        timer.start()
        assert names.lookup("late", timeout=20) == directory.Entry("late", "10.0.0.1", 5)
        timer.join()
        others.publish("late", "10.0.0.1:6", note="has 7")
        assert names.lookup("late") == directory.Entry("late", "10.0.0.1", 6, note="has 7")
        others.withdraw("late")
        with pytest.raises(LookupError):
            names.lookup("late")


def test_watch_tells_what_is_there_and_what_changes(where):
    stop = threading.Event()
    with directory.use(where, LEASE) as names, directory.use(where, LEASE) as others:
        others.publish("a", "10.0.0.1:5")
        changes = names.watch(stop)
        assert next(changes) == directory.Change(directory.Entry("a", "10.0.0.1", 5))
        others.publish("b c/ü", "[fe80::1]:6")
        assert next(changes).entry == directory.Entry("b c/ü", "fe80::1", 6)
        others.withdraw("a")
        assert next(changes) == directory.Change(directory.Entry("a", "10.0.0.1", 5), gone=True)
        stop.set()
        assert list(changes) == []


def test_a_thousand_endpoints(where):
    with directory.use(where, 10) as names:
        for number in range(1000):
            names.publish(f"worker-{number}", f"10.0.{number // 250}.{number % 250}:18500")
        begun = time.monotonic()
        found = names.entries()
        taken = time.monotonic() - begun
        assert len(found) == 1000 and taken < 5, taken


def test_an_etcd_that_is_down_costs_no_connection_and_is_told_again(tmp_path, caplog):
    port = etcd_server.free_port()
    where = f"etcd://127.0.0.1:{port}"
    with directory.use(where, LEASE) as names, p2p.Endpoint(0, 1, listen_address="127.0.0.1") as endpoint:
        with etcd(tmp_path / "first", port) as server, peer(where) as process:
            prefill = names.publish("prefill", endpoint)
            connection = names.lookup("decode/0").connect(endpoint)
            server.kill()
            server.wait()
            send(endpoint, connection)
            assert process.stdout.readline() == "got it\n"
        with pytest.raises(directory.DirectoryError, match="etcd at"):
            names.lookup("prefill")
        with pytest.raises(directory.DirectoryError):
            names.publish("other", "10.0.0.1:5")
        prefill = names.publish("prefill", endpoint, note="changed")
        wait_for(lambda: "cannot be renewed" in caplog.text, "a word of it", seconds=20)
        # One that has forgotten all.
        with etcd(tmp_path / "second", port):
            assert names.lookup("prefill", timeout=20) == prefill
            assert [entry.name for entry in names.entries()] == ["prefill"]


def test_what_is_withdrawn_while_etcd_is_down_goes_once_it_is_back(tmp_path):
    port = etcd_server.free_port()
    with directory.use(f"etcd://127.0.0.1:{port}", LEASE) as names:
        with etcd(tmp_path / "data", port):
            names.publish("stays", "10.0.0.1:5")
            names.publish("goes", "10.0.0.1:6")
        names.withdraw("goes")
        with etcd(tmp_path / "data", port):  # with all that it knew, and the lease
            wait_for(lambda: [entry.name for entry in names.entries()] == ["stays"], "the withdrawal")


@pytest.mark.parametrize("place", ["no-such-host.invalid", "no-such-host.invalid:", "no-such-host.invalid/of/tests"])
@pytest.mark.parametrize(("kind", "scheme"), [("etcd", "http"), ("etcds", "https")])
def test_etcd_has_its_port_unless_another_is_named(kind, scheme, place):
    with directory.use(f"{kind}://{place}") as names:
        with pytest.raises(directory.DirectoryError, match=f"etcd at {scheme}://no-such-host.invalid:2379: "):
            names.entries()


@pytest.mark.parametrize("place", ["", ":2379", "host:0x5", "host:99999/a"])
def test_what_is_no_place_of_an_etcd_is_refused(place):
    with pytest.raises(ValueError, match="use the directory "):
        directory.use(f"etcd://{place}")


class Strange(http.server.BaseHTTPRequestHandler):
    """Speaks JSON, and is no etcd."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.server.answer
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def strange():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strange) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"\xff", b'{"result": 5, "kvs": 5}', b'{"kvs": [{"key": 5}]}', b"[" * 100_000])
def test_what_is_no_etcd_is_an_error_of_the_directory(strange, answer):
    strange.answer = answer
    with directory.use(f"etcd://127.0.0.1:{strange.server_port}", LEASE) as names:
        with pytest.raises(directory.DirectoryError, match="etcd at"):
            names.publish("a", "10.0.0.1:5")
        if answer != b"{}":  # which lists nothing
            with pytest.raises(directory.DirectoryError, match="kv/range of etcd at"):
                names.entries()


def test_an_etcd_that_trickles_or_floods_is_cut_off(strange, monkeypatch):
    monkeypatch.setattr(driver, "_PATIENCE", 1.0)
    monkeypatch.setattr(driver, "_MOST_BYTES", 1000)
    strange.answer = b" " * 1001
    with directory.use(f"etcd://127.0.0.1:{strange.server_port}", LEASE) as names:
        with pytest.raises(directory.DirectoryError, match="more than 1000 bytes"):
            names.entries()
    with trickling(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n") as place:
        with directory.use(f"etcd://{place}", LEASE) as names:
            with pytest.raises(directory.DirectoryError, match="not there within 1 s"):
                names.entries()


def test_an_answer_that_is_none_does_not_end_the_renewals(strange, caplog):
    strange.answer = b'{"ID": "7", "result": {"TTL": "9"}}'
    with directory.use(f"etcd://127.0.0.1:{strange.server_port}", LEASE) as names:
        names.publish("a", "10.0.0.1:5")
        strange.answer = b'{"result": {"TTL": "many"}}'
        wait_for(lambda: "cannot be renewed" in caplog.text, "a word of it", seconds=20)
        strange.answer = b'{"ID": "7", "result": {"TTL": "9"}}'
        assert any(thread.name == "uccl-directory" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b'{"address": "10.0.0.1", "port": 1e999, "gpu": 0}',
        b'{"address": "10.0.0.1", "port": 65536, "gpu": 0}',
        b'{"address": "10.0.0.1", "port": 5, "gpu": []}',
        b'{"address": "10.0.0.1", "port": 5, "gpu": 0, "until": "soon"}',
    ],
)
def test_what_is_no_entry_hides_none(text, tmp_path):
    with directory.use(f"folder://{tmp_path}", LEASE) as names:
        names.publish("a", "10.0.0.1:5")
        for name in ("b", "%FF"):
            (tmp_path / f"{name}.endpoint").write_bytes(text)
        assert [entry.name for entry in names.entries()] == ["a"]
        with pytest.raises(LookupError):
            names.lookup("b")


def test_what_is_no_file_hangs_nobody(tmp_path):
    with directory.use(f"folder://{tmp_path}", LEASE) as names:
        names.publish("a", "10.0.0.1:5")
        os.mkfifo(tmp_path / "pipe.endpoint")
        (tmp_path / "folder.endpoint").mkdir()
        (tmp_path / "nowhere.endpoint").symlink_to("/dev/zero")
        for name in ("pipe", "folder", "nowhere"):
            with pytest.raises(directory.DirectoryError, match=f"look '{name}' up in .*: it is no file"):
                names.lookup(name)
        assert [entry.name for entry in names.entries()] == ["a"]
    with directory.use(f"static://{tmp_path}/pipe.endpoint") as names, pytest.raises(directory.DirectoryError, match="no file"):
        names.entries()


def test_a_store_that_the_program_has():
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with directory.TcpStoreDirectory(store, LEASE) as names:
        for name in (" a", "b\u2028c\x1dd"):  # at these `splitlines` would cut
            names.publish(name, "10.0.0.1:5")
            assert names.lookup(name).port == 5
        assert [entry.name for entry in names.entries()] == [" a", "b\u2028c\x1dd"]


# src/api/directory_test.cc has the same two texts.
def test_it_reads_and_writes_what_cpp_does(tmp_path):
    with directory.use(f"folder://{tmp_path}", LEASE) as names:
        text = '{"address": "10.0.0.1", "port": 5, "gpu": 0, "until": 4000000000.000000}'
        (tmp_path / "decode%2F0.endpoint").write_text(text)
        assert names.lookup("decode/0") == directory.Entry("decode/0", "10.0.0.1", 5)
        names.publish("b c/ü", "[fe80::1]:6")
        assert (tmp_path / "b%20c%2F%C3%BC.endpoint").exists()
    entry = directory.Entry("b c/ü", "fe80::1", 6, "0000:3b:00.0")
    assert entry.text(until=4e9) == '{"address": "fe80::1", "port": 6, "gpu": "0000:3b:00.0", "until": 4000000000.0}'


@pytest.mark.parametrize("name", [" a", "\ta ", ".a", "..", "ä", "%41", "日本 😀"])
def test_any_name_is_listed(name, tmp_path):
    with directory.use(f"folder://{tmp_path}", LEASE) as names:
        names.publish(name, "10.0.0.1:5")
        assert names.lookup(name) == names.entries()[0] == directory.Entry(name, "10.0.0.1", 5)


def test_static(tmp_path, monkeypatch):
    path = tmp_path / "peers"
    path.write_text("# who\na=10.0.0.1:5\n\nb = [fe80::1]:6\n")
    for where in (f"static://{path}", "static://a=10.0.0.1:5,b=[fe80::1]:6", "static://$PEERS"):
        monkeypatch.setenv("PEERS", "a=10.0.0.1:5,b=[fe80::1]:6")
        with directory.use(where) as names:
            assert names.entries() == [directory.Entry("a", "10.0.0.1", 5), directory.Entry("b", "fe80::1", 6)]
            names.publish("a", "10.0.0.1:5")
            with pytest.raises(directory.DirectoryError, match=r"is 10\.0\.0\.1:5 there"):
                names.publish("a", "10.0.0.2:5")
            with pytest.raises(LookupError):
                names.lookup("c")
    path.write_text("a=10.0.0.1")
    with directory.use(f"static://{path}") as names, pytest.raises(directory.DirectoryError, match="no host:port"):
        names.entries()


def test_k8s_names_are_those_of_dns(monkeypatch):
    real = socket.getaddrinfo

    def cluster(host, port, **options):
        known = {"web-0.peers.default.svc": ["10.1.0.4"], "peers.default.svc": ["10.1.0.4", "10.1.0.5"]}
        if host not in known:
            return real("no.such.host.invalid", port, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", cluster)
    with directory.use("k8s://peers.default.svc:18500") as names:
        assert names.lookup("web-0") == directory.Entry("web-0", "10.1.0.4", 18500)
        assert [entry.address for entry in names.entries()] == ["10.1.0.4", "10.1.0.5"]
        names.publish("web-0", "10.1.0.4:18500")
        with pytest.raises(directory.DirectoryError, match="UCCL_P2P_PORT=18500"):
            names.publish("web-0", "10.1.0.4:18501")


def test_k8s_asks_the_systems_resolver():
    with directory.use("k8s://localhost:18500") as names:
        assert "127.0.0.1" in [entry.address for entry in names.entries()]
        for name in ("a" * 64, "a..b"):
            with pytest.raises(directory.DirectoryError, match=f"look {name}.localhost up: no name in DNS"):
                names.lookup(name)


@pytest.mark.parametrize(
    ("where", "says"),
    [("redis://x", "one of static://"), ("folder://here", "absolute"), ("tcpstore://host", "host:port"), ("static://$NO", "not set")],
)
def test_what_is_no_directory(where, says):
    with pytest.raises(ValueError, match=says):
        directory.use(where)
    with pytest.raises(ValueError, match="lease"):
        directory.use("folder:///x", lease=60)
