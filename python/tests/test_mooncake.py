# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.mooncake between two processes: every byte compared, codes as Mooncake's, peers that end; and its installation."""

import gc
import inspect
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from mooncake_party import Party, pattern
from other_process import REPLY_SECONDS, Other

from uccl import mooncake, p2p
from uccl.mooncake import TransferEngine, TransferNotify, TransferOpcode, peers
from uccl.mooncake import __main__ as tool

MIB = 1 << 20
BOUND = 12.0  # keepalive, connect timeout and a machine that is busy

# As the wheel 0.3.13.post1 names them; those without names are given by position.
CONTRACT = """
initialize local_hostname metadata_server protocol device_name
initialize_ext local_hostname metadata_server protocol device_name metadata_type
get_rpc_port
register_memory buffer_addr capacity location
unregister_memory buffer_addr
batch_register_memory buffer_addresses capacities location
batch_unregister_memory buffer_addresses
transfer_sync_write target_hostname buffer peer_buffer_address length transport_hint
transfer_sync_read target_hostname buffer peer_buffer_address length transport_hint
transfer_sync target_hostname buffer peer_buffer_address length opcode notify transport_hint
transfer_submit_write target_hostname buffer peer_buffer_address length transport_hint
transfer_check_status batch_id
batch_transfer_sync_write target_hostname buffers peer_buffer_addresses lengths transport_hint
batch_transfer_sync_read target_hostname buffers peer_buffer_addresses lengths transport_hint
batch_transfer_sync target_hostname buffers peer_buffer_addresses lengths opcode notify transport_hint
batch_transfer_async_write target_hostname buffers peer_buffer_addresses lengths transport_hint
batch_transfer_async_read target_hostname buffers peer_buffer_addresses lengths transport_hint
batch_transfer_async target_hostname buffers peer_buffer_addresses lengths opcode transport_hint
get_batch_transfer_status batch_ids
write_bytes_to_buffer address data length
read_bytes_from_buffer address length
get_first_buffer_address segment_name
get_local_topology device_name
get_notifies
send_probe peer_server_name
warmup_efa_segment segment_name
get_engine
get_engine_ptr
"""


@pytest.fixture(scope="module")
def _process():
    kept = [Other(Party)]
    yield kept
    kept[0].stop()


class Two:
    """A party here, one in the other process, and their names."""

    def __init__(self, other, **variables):
        self.other, self.here = other, Party()
        self.there = other.open(**variables)
        self.name = self.here.open(**variables)


@pytest.fixture(params=["auto", "tcp"])
def two(request, _process):
    yield Two(_process[0], UCCL_P2P_TRANSPORT=request.param)


@pytest.fixture
def fast(_process):
    yield Two(_process[0])


@pytest.fixture
def doomed():
    """With a process that the test may kill."""
    other = Other(Party)
    yield Two(other, UCCL_P2P_TRANSPORT="tcp", UCCL_P2P_KEEPALIVE_MS="600")
    other.kill()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "uccl.mooncake")
    return caplog


def test_the_calls_are_mooncakes():
    for line in CONTRACT.split("\n")[1:-1]:
        name, *parameters = line.split()
        assert list(inspect.signature(getattr(TransferEngine, name)).parameters)[1:] == parameters, name
        assert getattr(TransferEngine, name).__doc__
    assert (mooncake.Read, mooncake.Write) == (0, 1) and TransferNotify() == TransferNotify("", "")


def test_writes_and_reads(two):
    mine, theirs = two.here.memory("a", 4 * MIB, 1), two.other.memory("b", 4 * MIB, 2)
    assert two.here.engine.transfer_sync_write(two.there, mine + 3, theirs + 5, MIB + 7) == 0
    want = pattern(4 * MIB, 2)
    want[5 : MIB + 12] = pattern(4 * MIB, 1)[3 : MIB + 10]
    assert np.array_equal(two.other.contents("b"), want)
    assert two.here.engine.transfer_sync_read(two.there, mine + MIB, theirs, 3 * MIB) == 0
    assert np.array_equal(two.here.arrays["a"][MIB:], want[: 3 * MIB])
    assert np.array_equal(two.here.arrays["a"][:MIB], pattern(4 * MIB, 1)[:MIB])


@pytest.mark.parametrize("size", [1, 132, 4096])
def test_lists(two, size):
    count = 600
    mine, theirs = two.here.memory("a", count * size, 1), two.other.memory("b", count * size, 2)
    order = np.random.default_rng(3).permutation(count)
    here = [mine + at * size for at in range(count)]
    there = [theirs + int(at) * size for at in order]
    assert two.here.engine.batch_transfer_sync_write(two.there, here, there, [size] * count) == 0
    sent = pattern(count * size, 1).reshape(count, size)
    assert np.array_equal(two.other.contents("b").reshape(count, size)[order], sent)
    two.here.arrays["a"][:] = 0
    assert two.here.engine.batch_transfer_sync_read(two.there, here, there, [size] * count) == 0
    assert np.array_equal(two.here.arrays["a"].reshape(count, size), sent)


def test_pieces_of_no_bytes(fast):
    mine, theirs = fast.here.memory("a", 64, 1), fast.other.memory("b", 64, 2)
    write = fast.here.engine.batch_transfer_sync_write
    assert write(fast.there, [], [], []) == 0
    assert write(fast.there, [1, mine], [1, theirs], [0, 8]) == 0
    assert fast.here.engine.transfer_check_status(fast.here.engine.transfer_submit_write(fast.there, 0, 0, 0)) == 1
    assert np.array_equal(fast.other.contents("b")[:8], pattern(64, 1)[:8])


def until_told(engine, batch):
    deadline = time.monotonic() + REPLY_SECONDS
    while not (status := engine.transfer_check_status(batch)):
        assert time.monotonic() < deadline
    return status


def test_what_goes_on_by_itself(two):
    engine, mine, theirs = two.here.engine, two.here.memory("a", 3 * MIB, 1), two.other.memory("b", 3 * MIB, 2)
    parts = [at * MIB for at in range(3)]
    batch = engine.batch_transfer_async_write(two.there, [mine + at for at in parts], [theirs + at for at in parts], [MIB] * 3)
    assert batch > 0 and until_told(engine, batch) == 1
    assert engine.transfer_check_status(batch) == -1, "told before"
    assert np.array_equal(two.other.contents("b"), pattern(3 * MIB, 1))
    two.here.arrays["a"][:] = 0
    reads = [engine.batch_transfer_async_read(two.there, [mine + at], [theirs + at], [MIB]) for at in parts]
    assert min(reads) > 0 and engine.get_batch_transfer_status(reads) == 0
    assert np.array_equal(two.here.arrays["a"], pattern(3 * MIB, 1))
    assert engine.get_batch_transfer_status(reads) == -1, "told before"
    assert until_told(engine, engine.transfer_submit_write(two.there, mine, theirs + MIB, 5)) == 1


def test_notifications(two):
    mine, theirs = two.here.memory("a", MIB, 1), two.other.memory("b", MIB, 2)
    for word in ("first", "zweite: ä"):
        note = TransferNotify(word, "!" * 5000)
        assert two.here.engine.transfer_sync(two.there, mine, theirs, MIB, TransferOpcode.Write, note) == 0
    assert two.other.call("get_notifies") == [TransferNotify("first", "!" * 5000), TransferNotify("zweite: ä", "!" * 5000)]
    assert two.other.call("get_notifies") == [] == two.here.engine.get_notifies()


def test_both_ways_in_threads(two):
    """Also the first contact is by many at once, from both sides."""
    mine = [two.here.memory(f"a{at}", 65536, at) for at in range(4)]
    theirs = [two.other.memory(f"b{at}", 65536, 10 + at) for at in range(5)]
    results = []
    two.other.begin("write_often", two.name, theirs[4], mine[3], 65536, 50)
    threads = [
        threading.Thread(
            target=lambda at=at: results.extend(
                two.here.engine.transfer_sync_write(two.there, mine[at], theirs[at], 65536) for _ in range(50)
            )
        )
        for at in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(REPLY_SECONDS)
    assert two.other.result() == [0] * 50 and results == [0] * 150
    for at in range(3):
        assert np.array_equal(two.other.contents(f"b{at}"), pattern(65536, at))
    assert np.array_equal(two.here.arrays["a3"], pattern(65536, 14))


def test_its_own_memory(fast):
    mine = fast.here.memory("a", 8192, 1)
    assert fast.here.engine.transfer_sync_write(fast.name, mine, mine + 4096, 4096) == 0
    assert np.array_equal(fast.here.arrays["a"], np.tile(pattern(8192, 1)[:4096], 2))


def test_many_regions(fast):
    """Their list is long, and grows after it was read."""
    mine, size = fast.here.memory("a", 1 << 16, 1), 16
    first = fast.other.many(2000, size)
    there = [first + 2 * at * size for at in range(2000)]
    here = [mine + at * size for at in range(2000)]
    assert fast.here.engine.batch_transfer_sync_read(fast.there, here, there, [size] * 2000) == 0
    want = pattern(4000 * size, 7).reshape(2000, 2, size)[:, 0]
    assert np.array_equal(fast.here.arrays["a"][: 2000 * size].reshape(2000, size), want)
    later = fast.other.memory("later", 100, 5)
    assert fast.here.engine.transfer_sync_read(fast.there, mine, later, 100) == 0
    assert np.array_equal(fast.here.arrays["a"][:100], pattern(100, 5))
    for piece, length in ((there[5] + 1, size), (there[5] - 1, 2), (there[5] + size, 1), (1, 1), (2**64 - 1, 1)):
        assert fast.here.engine.transfer_sync_read(fast.there, mine, piece, length) == -1


def test_memory_registered_anew(two):
    mine, theirs = two.here.memory("a", 4096, 1), two.other.memory("b", 4096, 2)
    for seed in range(3, 6):
        assert two.here.engine.transfer_sync_read(two.there, mine, theirs, 4096) == 0
        assert two.other.again("b", seed) == 0
        assert two.here.engine.transfer_sync_read(two.there, mine, theirs, 4096) == 0
        assert np.array_equal(two.here.arrays["a"], pattern(4096, seed))
    assert two.other.call("unregister_memory", theirs) == 0
    assert two.here.engine.transfer_sync_read(two.there, mine, theirs, 4096) == -1


def test_codes_of_registrations(said):
    engine, array = TransferEngine(), np.zeros(1 << 16, np.uint8)
    start = int(array.ctypes.data)
    assert engine.register_memory(start, 64) == -1 and "initialize" in said.text
    assert engine.get_rpc_port() == 0 and engine.get_notifies() == []
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.register_memory(start + 4096, 4096) == 0
    for at, size in ((4096, 4096), (0, 4097), (8191, 1), (0, 65536), (5000, 10)):
        assert engine.register_memory(start + at, size) == -7, (at, size)
    assert hex(start + 4096) in said.text
    assert engine.batch_register_memory([start, start + 9000, start + 4100], [64, 64, 1]) == -7
    assert engine.batch_register_memory([start, start + 32], [64, 64]) == -7
    assert engine.batch_register_memory([start], [64, 64]) == -1
    assert engine.register_memory(start, 0) == -1 == engine.register_memory(0, 64)
    assert engine.register_memory(start, -1) == -1
    assert engine.batch_register_memory([start + 8192, start], [64, 4096], "cpu:0") == 0, "none of those above is left"
    assert engine.unregister_memory(start + 1) == -3
    assert engine.batch_unregister_memory([start, start + 1, start + 4096]) == -3, "the others are gone"
    assert engine.register_memory(start, 8192) == 0
    assert engine.write_bytes_to_buffer(start + 5, "hello", 4) == 0 and engine.write_bytes_to_buffer(start, b"\0x", 2) == 0
    assert engine.read_bytes_from_buffer(start, 10) == b"\0x\0\0\0hell\0"
    assert engine.write_bytes_to_buffer(start + 30000, "x", 1) == -1 == engine.write_bytes_to_buffer(start, "x", 2)
    with pytest.raises(ValueError, match="not registered"):
        engine.read_bytes_from_buffer(start + 8190, 3)


def test_refusals_name_what_and_why(fast, said):
    engine, mine, theirs = fast.here.engine, fast.here.memory("a", 4096, 1), fast.other.memory("b", 4096, 2)
    for call, code, words in (
        (lambda: engine.transfer_sync_write("127.0.0.1:1", mine, theirs, 8), -1, "127.0.0.1:1.*refused"),
        (lambda: engine.transfer_sync_write("nobody", mine, theirs, 8), -1, "'nobody'.*host:port"),
        (lambda: engine.transfer_sync_write(fast.there, mine, theirs + 4090, 8), -1, f"{fast.there}.*{theirs + 4090:#x}"),
        (lambda: engine.transfer_sync_write(fast.there, mine + 4090, theirs, 8), -1, f"{mine + 4090:#x} are not registered here"),
        (lambda: engine.batch_transfer_sync_read(fast.there, [mine], [theirs], [8, 8]), -1, "1 buffers.* 2 lengths"),
        (lambda: engine.batch_transfer_async_read(fast.there, [mine], [theirs], [5000]), 0, "5000 bytes"),
        (lambda: engine.transfer_submit_write("127.0.0.1:1", mine, theirs, 8), 0, "refused"),
        (lambda: engine.get_batch_transfer_status([77]), -1, "number 77"),
        (lambda: engine.send_probe("127.0.0.1:1"), -102, "refused"),
        (lambda: engine.get_first_buffer_address("127.0.0.1:1"), 0, "refused"),
        (lambda: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), -1, "before"),
        (lambda: TransferEngine().initialize("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", ""), -1, "etcd.*P2PHANDSHAKE"),
        (lambda: TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", ""), -1, "'ascend'"),
        (lambda: TransferEngine().initialize("no.such.host.invalid", "P2PHANDSHAKE", "tcp", ""), -1, "no.such.host"),
    ):  # fmt: skip
        said.clear()
        assert call() == code, words
        assert len(said.records) == 1 and said.records[0].levelname == "ERROR"
        assert re.search(words, said.text), said.text
    with pytest.raises(p2p.Unavailable, match="Store"):
        engine.get_engine()
    assert engine.send_probe(fast.there) == 0 and engine.get_first_buffer_address(fast.there) == theirs
    assert engine.get_local_topology() == "{}\n" and engine.warmup_efa_segment(fast.there) == 0


def test_an_endpoint_of_another_kind(fast, monkeypatch, said):
    monkeypatch.setattr(peers, "SECONDS", 0.3)
    with p2p.Endpoint(listen_address="127.0.0.1") as endpoint:
        port = p2p.Endpoint.parse_metadata(endpoint.get_metadata())[1]
        mine = fast.here.memory("a", 64, 1)
        assert fast.here.engine.transfer_sync_write(f"127.0.0.1:{port}", mine, mine, 8) == -1
    assert "uccl.mooncake" in said.messages[-1]


def test_one_that_ends_before_it_told_anything(fast, said):
    """An endpoint of another kind again: it accepts, tells nothing, and goes."""
    endpoint = p2p.Endpoint(listen_address="127.0.0.1")
    name = f"127.0.0.1:{p2p.Endpoint.parse_metadata(endpoint.get_metadata())[1]}"
    results = []
    probing = threading.Thread(target=lambda: results.append(fast.here.engine.send_probe(name)))
    probing.start()
    assert endpoint.accept(timeout=REPLY_SECONDS)[0]
    endpoint.close()
    probing.join(BOUND)
    assert results == [-102] and name in said.messages[-1]


@pytest.mark.parametrize("where", ["localhost", "127.0.0.1:7", "0.0.0.0", "[::1]"])
def test_where_it_listens(where, fast):
    engine = TransferEngine()
    if "::" in where and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6")
    assert engine.initialize(where, "P2PHANDSHAKE", "nvlink", "") == 0
    at = "[::1]" if "::" in where else "127.0.0.1"
    assert fast.here.engine.send_probe(f"{at}:{engine.get_rpc_port()}") == 0
    engine.close()


def test_it_ends_with_its_object(fast):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    name = f"127.0.0.1:{engine.get_rpc_port()}"
    assert fast.here.engine.send_probe(name) == 0
    del engine
    gc.collect()
    assert fast.here.engine.send_probe(name) == -102


def stop(pid):
    """Returns once all threads of it stand still."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + REPLY_SECONDS
    tasks = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    while any(task.read_text().rpartition(")")[2].split()[0] != "T" for task in tasks):
        assert time.monotonic() < deadline


def test_a_peer_that_is_killed(doomed):
    engine, mine, theirs = doomed.here.engine, doomed.here.memory("a", MIB, 1), doomed.other.memory("b", MIB, 2)
    assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == 0
    stop(doomed.other.pid())
    late = engine.batch_transfer_async_read(doomed.there, [mine], [theirs], [MIB])
    assert late > 0 and engine.transfer_check_status(late) == 0
    results = []
    waiting = threading.Thread(target=lambda: results.append(engine.transfer_sync_write(doomed.there, mine, theirs, MIB)))
    waiting.start()
    start = time.monotonic()
    doomed.other.kill()
    waiting.join(BOUND)
    assert results == [-1] and until_told(engine, late) == -1
    assert engine.transfer_sync_write(doomed.there, mine, theirs, MIB) == -1 and engine.send_probe(doomed.there) == -102
    assert time.monotonic() - start < BOUND


def test_a_peer_that_comes_back_at_its_port(doomed):
    engine, mine, theirs = doomed.here.engine, doomed.here.memory("a", MIB, 1), doomed.other.memory("b", MIB, 2)
    assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == 0
    doomed.other.kill()
    again = Other(Party)
    try:
        assert again.open(UCCL_P2P_PORT=doomed.there.rpartition(":")[2]) == doomed.there
        theirs = again.memory("b", MIB, 3)
        assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == 0
        assert np.array_equal(doomed.here.arrays["a"], pattern(MIB, 3))
    finally:
        again.stop()


def test_a_peer_that_is_too_slow(doomed, monkeypatch):
    """What is read from it is given up, and the memory is free; it is used again when it goes on."""
    engine, mine, theirs = doomed.here.engine, doomed.here.memory("a", MIB, 1), doomed.other.memory("b", MIB, 2)
    assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == 0
    pid = doomed.other.pid()
    stop(pid)
    try:
        monkeypatch.setattr(engine, "_seconds", 0.2)
        assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == -1
        assert until_told(engine, engine.batch_transfer_async_read(doomed.there, [mine], [theirs], [MIB])) == -2
        before = doomed.here.arrays["a"].copy()
    finally:
        os.kill(pid, signal.SIGCONT)
    monkeypatch.undo()
    assert doomed.other.address_of("b") == theirs
    assert np.array_equal(doomed.here.arrays["a"], before)
    assert engine.transfer_sync_read(doomed.there, mine, theirs, MIB) == 0


def test_the_time_that_transfers_may_take(monkeypatch):
    for variable, seconds in (("", 30), ("100", 100), ("1", 5)):
        monkeypatch.setenv("MC_TRANSFER_TIMEOUT", variable)
        assert TransferEngine()._seconds == seconds


# Under Mooncake's name.


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """`python -m uccl.mooncake` on a folder: its exit code and what it printed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["mooncake", *words, "--dir", str(tmp_path)])
        return tool.main(), "".join(capsys.readouterr())

    return run


def imported(folder):
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); from mooncake.engine import TransferEngine as e; print(e.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("options, kind", [([], "linked"), (["--copy"], "copied")])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside Mooncake"])
def test_install_use_uninstall(tmp_path, command, options, kind, beside):
    if beside:
        (tmp_path / "mooncake").mkdir()
        (tmp_path / "mooncake" / "__init__.py").write_text("")
        (tmp_path / "mooncake" / "engine.py").write_text("class TransferEngine: pass\n")
    assert "absent" in command("status")[1]
    for _ in range(2):
        code, text = command("install", *options)
        assert code == 0 and kind in text and str(tmp_path) in text
    assert kind in command("status")[1]
    assert imported(tmp_path) == "uccl.mooncake.engine"
    assert "removed" in command("uninstall")[1] and "absent" in command("uninstall")[1]
    if beside:
        assert imported(tmp_path) == "mooncake.engine"
    assert os.listdir(tmp_path) == (["mooncake"] if beside else [])


def test_a_package_from_elsewhere_is_left_alone(tmp_path, command):
    (tmp_path / "mooncake" / "engine").mkdir(parents=True)
    foreign = tmp_path / "mooncake" / "engine" / "__init__.py"
    foreign.write_text("something else")
    for word in ("install", "uninstall"):
        code, text = command(word)
        assert code == 1 and "from elsewhere" in text
    assert foreign.read_text() == "something else"
    assert "linked" in command("install", "--force")[1]


def test_where_it_goes():
    assert tool.package().name == "mooncake"
