# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""uccl.collective and uccl.transfer, each rank a process."""

import multiprocessing
import os
import signal
import socket
import traceback

import pytest

from uccl import p2p

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from uccl import collective, transfer  # noqa: E402

SPAWN = multiprocessing.get_context("spawn")
SECONDS = 180

pytestmark = pytest.mark.timeout(SECONDS + 30)


def _rank_main(body, rank, world, store, pipe):
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        pipe.send((None, body(rank, world)))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the test shows it
        pipe.send((traceback.format_exc(), None))


def run_ranks(body, world, tmp_path):
    """What ``body(rank, world)`` returns, by rank."""
    pipes, processes = [], []
    for rank in range(world):
        mine, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=_rank_main, args=(body, rank, world, tmp_path / "store", theirs))
        process.start()
        pipes.append(mine)
        processes.append(process)
    try:
        results = []
        for pipe in pipes:
            assert pipe.poll(SECONDS), "a rank does not answer"
            error, value = pipe.recv()
            assert error is None, error
            results.append(value)
        for process in processes:
            process.join(10)
        return results
    finally:
        for process in processes:
            process.kill()


def _everything(rank, world):
    torch.set_num_threads(1)
    context = collective.init_collective(num_cpus=1, local_gpu_idx=rank)
    assert collective.get_collective() is context
    mine = torch.full((1000,), float(rank))
    got = [torch.zeros(1000) for _ in range(world)]
    collective.register_tensor(mine)
    ids = [collective.irecv(got[other], other) for other in range(world)]
    ids += [collective.isend(mine, other) for other in range(world)]
    assert ids.count(-1) == 2  # the own rank
    collective.wait_all(ids)
    assert all(collective.test(transfer_id) for transfer_id in ids)
    sums = [float(tensor.sum()) for tensor in got]
    # A ring of blocking calls, even ranks first.
    token = torch.tensor([rank])
    into = torch.zeros_like(token)
    right, left = (rank + 1) % world, (rank - 1) % world
    for turn in (0, 1):
        if rank % 2 == turn:
            collective.send(token, right)
        if left % 2 == turn:
            collective.recv(into, left)
    # Not contiguous: other layouts on the two sides, all started at once.
    grid = torch.arange(48.0).reshape(6, 8) + rank
    into_grid = torch.zeros(6, 16)
    ops = [("send", grid.t()[::2], right), ("recv", into_grid.view(8, 12)[::2, ::2], left)]
    collective.wait_all(collective.batch_isend_irecv(ops))
    assert torch.equal(into_grid.view(8, 12)[::2, ::2].reshape(-1), (grid.t()[::2] + left - rank).reshape(-1))
    with pytest.raises(ValueError, match="recv: elements of the tensor share memory"):
        collective.batch_isend_irecv([("send", mine, right), ("recv", mine[:1].expand(5), left)])
    with pytest.raises(ValueError, match="no connection"):
        collective.send(mine, world + 3)
    collective.send(mine, rank)
    assert collective.check_tensor_registered(mine) == collective.register_tensor(mine)
    assert collective.check_tensor_registered(mine[10:20]) == collective.check_tensor_registered(mine)
    assert collective.deregister_tensor(mine) is True
    assert collective.deregister_tensor(mine) is False
    assert collective.check_tensor_registered(mine) is None
    unknown = context.ep.conn_id_of_rank(right) == 2**64 - 1
    collective.finalize_collective()
    with pytest.raises(RuntimeError, match="init_collective"):
        collective.get_collective()
    return sums, int(into), unknown


def test_every_rank_reaches_every_other(tmp_path):
    world = 4
    for rank, (sums, left, unknown) in enumerate(run_ranks(_everything, world, tmp_path)):
        assert sums == [1000.0 * other if other != rank else 0.0 for other in range(world)]
        assert left == (rank - 1) % world
        assert not unknown


def _later_generation(rank, world):
    torch.set_num_threads(1)
    context = collective.init_collective(num_cpus=1, local_gpu_idx=rank, disable_uccl_intra=True)
    assert context.initialized and not context.use_copy_engine_for_intra
    assert [conn is None for conn in context.send_connections] == [other == rank for other in range(world)]
    assert context.recv_connections == context.send_connections
    assert context.local_connections == [other != rank for other in range(world)]
    assert context.float_type_from_tensor(torch.zeros(1)) == p2p.FloatType.kFloat32
    assert context.float_type_from_tensor(torch.zeros(1, dtype=torch.int8)) == p2p.FloatType.kUndefined
    right, left = (rank + 1) % world, (rank - 1) % world
    out, into = torch.full((50,), float(rank)), torch.zeros(50)
    ops = [collective.P2POp(collective.isend, out, right), context.P2POp("recv", into, left)]
    collective.wait_all(collective.batch_isend_irecv([*ops, ("send", out, rank)]))
    assert bool((into == left).all())
    assert len(list(context.memory_regions)) == 2
    gathered = torch.zeros(world, 3, dtype=torch.int64)
    collective.allgather(torch.full((3,), rank), gathered)
    again = torch.zeros(world * 3, dtype=torch.int64)
    collective.wait_all(collective.iallgather(torch.full((3,), rank), again))
    with pytest.raises(ValueError, match="recv_tensor"):
        collective.allgather(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="P2POp"):
        collective.P2POp("broadcast", out, right)
    collective.finalize_collective()
    assert not context.initialized and context.send_connections is None
    return gathered.tolist(), again.tolist()


def test_the_later_generation(tmp_path):
    world = 3
    for gathered, again in run_ranks(_later_generation, world, tmp_path):
        assert gathered == [[rank] * 3 for rank in range(world)]
        assert again == [rank for rank in range(world) for _ in range(3)]


def _wrong_calls(rank, world):
    """By name, calls that raise; the first rank makes some of them otherwise than the others do."""
    other, some, few = (rank + 1) % world, torch.zeros(64), torch.zeros(8)
    batch = collective.batch_isend_irecv
    gather = collective.allgather
    return {
        "an unknown rank": (ValueError, lambda: batch([("recv", some, other), ("send", some, world)])),
        "elements that share memory": (
            ValueError, lambda: batch([("send", some, other), ("recv", torch.zeros(1).expand(64), other)]),
        ),
        "a wrong name": (ValueError, lambda: batch([("send", some, other), ("broadcast", some, other)])),
        "no tensor": (TypeError, lambda: batch([("send", some, other), ("send", [1.0], other)])),
        "a conjugate view": (
            ValueError, lambda: batch([("recv", some, other), ("send", torch.zeros(8, dtype=torch.complex64).conj(), other)]),
        ),
        "gathering into what has gaps": (ValueError, lambda: gather(some, torch.zeros(64 * world, 2)[:, 0])),
        "gathering no tensor": (TypeError, lambda: gather([1.0], torch.zeros(64 * world))),
        "gathering into too little": (ValueError, lambda: gather(some, torch.zeros(64))),
        "a send longer than its receive": (
            p2p.MessageTooLong, lambda: collective.wait_all(batch([("recv", few, other), ("send", some, other)])),
        ),
    }  # fmt: skip


def _goes_on_after_errors(rank, world):
    torch.set_num_threads(1)
    collective.init_collective(num_cpus=1, local_gpu_idx=rank)

    def the_next_works(after):
        gathered = torch.zeros(world, 3)
        collective.allgather(torch.full((3, 2), float(rank))[:, 0], gathered)
        assert gathered.tolist() == [[float(one)] * 3 for one in range(world)], after

    for name, (kind, call) in _wrong_calls(rank, world).items():
        with pytest.raises(kind):
            call()
        the_next_works(name)
        if kind is not p2p.MessageTooLong:
            # The other ranks make no such mistake and come to the next one at once.
            if rank == 0:
                with pytest.raises(kind):
                    call()
            the_next_works(f"{name}, at one rank")
    collective.finalize_collective()


def test_a_call_that_raised_leaves_the_next_one_working(tmp_path):
    run_ranks(_goes_on_after_errors, 2, tmp_path)


def _torchs_own_operations(rank, world):
    torch.set_num_threads(1)
    collective.init_collective(num_cpus=1, local_gpu_idx=rank)
    other, into = 1 - rank, torch.zeros(8)
    ops = [dist.P2POp(dist.isend, torch.ones(8), other), dist.P2POp(dist.irecv, into, other)]
    collective.wait_all(collective.batch_isend_irecv(ops))
    collective.finalize_collective()
    return into.tolist()


def test_torchs_own_operations(tmp_path):
    assert run_ranks(_torchs_own_operations, 2, tmp_path) == [[1.0] * 8] * 2


def test_needs_a_process_group():
    with pytest.raises(RuntimeError, match="initialised"):
        collective.CollectiveContext()


def _receive(pipe, port):
    try:
        with transfer.TransferManager(1, 1, port) as manager:
            pipe.send(manager.listen_port)
            conn = manager.accept(timeout=30)
            tensor = torch.zeros(5000, dtype=torch.int32)
            transfer_id = manager.register_transfer(conn, tensor)
            for turn in (1, 2):
                assert manager.post_transfer_metadata(transfer_id) is True
                assert manager.wait_transfer_done(transfer_id) is True
                assert bool((tensor == turn).all())
            assert manager.deregister_transfer(transfer_id) is True
            pipe.send("all there")
            pipe.recv()
    except BaseException:  # noqa: BLE001 - the test shows it
        pipe.send(traceback.format_exc())


def test_transfer_manager():
    pipe, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_receive, args=(theirs, 0), daemon=True)
    process.start()
    assert pipe.poll(SECONDS)
    port = pipe.recv()
    assert isinstance(port, int), port
    with transfer.TransferManager(0, 1, 0) as manager:
        conn = manager.connect("127.0.0.1", port)
        tensor = torch.zeros(5000, dtype=torch.int32)
        transfer_id = manager.register_transfer(conn, tensor)
        for turn in (1, 2):
            tensor.fill_(turn)
            metadata = manager.fetch_transfer_metadata(transfer_id)
            assert len(metadata) == 64
            poll_id = manager.do_transfer_async(transfer_id, metadata)
            while not manager.check_transfer_done(transfer_id, poll_id):
                pass
            assert manager.post_transfer_done(transfer_id) is True
        state = manager.transfer_table[transfer_id]
        assert (state.data, state.size) == (tensor.data_ptr(), 20000) and state.mr_id >= 1
        peer = manager.conn_table[conn]
        assert state.conn_state is peer and isinstance(peer, transfer.TransferManager.ConnState)
        assert (peer.local_gpu_idx, peer.remote_gpu_idx, peer.conn_id, peer.is_local) == (0, 1, conn, True)
        assert (manager.local_gpu_idx, manager.num_cpus) == (0, 1)
        mine = p2p.Endpoint.parse_metadata(manager.ep.get_metadata())
        assert (manager.local_ep_ip, manager.local_ep_port) == mine[:2]
        assert manager.listen_socket.getsockname()[1] == manager.listen_port
        assert pipe.poll(SECONDS) and pipe.recv() == "all there"
        with pytest.raises(ValueError, match="77"):
            manager.register_transfer(77, tensor)
        with pytest.raises(ValueError, match="77"):
            manager.post_transfer_metadata(77)
        with pytest.raises(ValueError, match="contiguous"):
            manager.register_transfer(conn, torch.zeros(4, 4).t())
        with pytest.raises(RuntimeError, match="64 bytes"):
            manager.do_transfer_async(transfer_id, b"short")
        pipe.send("through")
    process.join(10)
    assert process.exitcode == 0


def test_transfer_manager_and_strangers():
    with transfer.TransferManager(0, 1, 0, "127.0.0.1") as manager:
        with socket.create_connection(("127.0.0.1", manager.listen_port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ValueError, match="message"):
                manager.accept(timeout=5)
        with pytest.raises(p2p.TimedOut):
            manager.accept(timeout=0.1)


def _accept_and_stay(pipe):
    with transfer.TransferManager(1, 1, 0) as manager:
        pipe.send(manager.listen_port)
        manager.accept(timeout=30)
        pipe.send("accepted")
        pipe.recv()


@pytest.mark.parametrize("waits", ["fetch_transfer_metadata", "wait_transfer_done"])
def test_the_peer_of_a_transfer_manager_is_killed(waits):
    pipe, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_accept_and_stay, args=(theirs,), daemon=True)
    process.start()
    assert pipe.poll(SECONDS)
    with transfer.TransferManager(0, 1, 0) as manager:
        conn = manager.connect("127.0.0.1", pipe.recv())
        assert pipe.poll(SECONDS) and pipe.recv() == "accepted"
        transfer_id = manager.register_transfer(conn, torch.zeros(8))
        process.kill()
        with pytest.raises(ConnectionError):
            getattr(manager, waits)(transfer_id)
    process.join(10)


def _receive_for_ever(rank, world):
    collective.init_collective(num_cpus=1, local_gpu_idx=rank)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(p2p.PeerGone):
        collective.recv(torch.zeros(8), 1)
    os._exit(0)  # the process group of the dead rank cannot be left in order


def test_a_rank_is_killed(tmp_path):
    pipe, theirs = SPAWN.Pipe()
    ranks = [
        SPAWN.Process(target=_rank_main, args=(_receive_for_ever, rank, 2, tmp_path / "store", theirs))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(SECONDS)
        assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL], pipe.poll() and pipe.recv()
    finally:
        for process in ranks:
            process.kill()
