# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The usage that applications were written to: an acceptor that receives, a client that connects and sends."""

import multiprocessing
import traceback

import numpy as np
import pytest

from uccl import p2p

torch = pytest.importorskip("torch")

SPAWN = multiprocessing.get_context("spawn")
FLOATS = (512, 1024, 256)


def _server(pipe):
    try:
        endpoint = p2p.Endpoint(local_gpu_idx=1, num_cpus=4)
        pipe.send(bytes(endpoint.get_metadata()))
        success, remote_ip_addr, remote_gpu_idx, conn_id = endpoint.accept()
        assert success and remote_gpu_idx == 0 and isinstance(remote_ip_addr, str)

        tensor = torch.zeros(1024, dtype=torch.float32)
        success, mr_id = endpoint.reg(tensor.data_ptr(), tensor.numel() * 4)
        assert success
        assert endpoint.recv(conn_id, mr_id, tensor.data_ptr(), tensor.numel() * 4)
        assert bool((tensor == 1).all())

        data = np.zeros(5, dtype=np.float32)
        success, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
        assert endpoint.recv(conn_id, mr_id, data.ctypes.data, data.nbytes)
        assert data.tolist() == [1, 2, 3, 4, 5]
        data *= 2
        assert endpoint.send(conn_id, mr_id, data.ctypes.data, data.nbytes)

        tensors = [torch.zeros(count, dtype=torch.float32) for count in FLOATS]
        ids = [endpoint.reg(item.data_ptr(), item.numel() * 4)[1] for item in tensors]
        pointers = [item.data_ptr() for item in tensors]
        sizes = [item.numel() * 4 for item in tensors]
        assert endpoint.recvv(conn_id, ids, pointers, sizes, 3)
        assert all(bool((item == 1).all()) for item in tensors)
        pipe.send("ok")
    except BaseException:  # noqa: BLE001 - the test shows it
        pipe.send(traceback.format_exc())


@pytest.mark.parametrize("with_port", [True, False], ids=["port", "no port"])
def test_usage(with_port):
    pipe, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_server, args=(theirs,), daemon=True)
    process.start()
    try:
        assert pipe.poll(120)
        address, port, gpu = p2p.Endpoint.parse_metadata(pipe.recv())
        endpoint = p2p.Endpoint(local_gpu_idx=0, num_cpus=4)
        if with_port:
            success, conn_id = endpoint.connect(address, gpu, remote_port=port)
        else:
            success, conn_id = endpoint.connect(address, remote_gpu_idx=1)
        assert success, p2p.last_error()

        tensor = torch.ones(1024, dtype=torch.float32)
        success, mr_id = endpoint.reg(tensor.data_ptr(), tensor.numel() * 4)
        assert success
        assert endpoint.send(conn_id, mr_id, tensor.data_ptr(), tensor.numel() * 4), p2p.last_error()

        data = np.array([1.0, 2.0, 3.0, 4.0, 5.0], dtype=np.float32)
        success, mr_id = endpoint.reg(data.ctypes.data, data.nbytes)
        assert success
        assert endpoint.send(conn_id, mr_id, data.ctypes.data, data.nbytes), p2p.last_error()
        recv_data = np.zeros_like(data)
        success, recv_mr_id = endpoint.reg(recv_data.ctypes.data, recv_data.nbytes)
        assert success
        assert endpoint.recv(conn_id, recv_mr_id, recv_data.ctypes.data, recv_data.nbytes), p2p.last_error()
        assert recv_data.tolist() == [2, 4, 6, 8, 10]

        tensors = [torch.ones(count, dtype=torch.float32) for count in FLOATS]
        ids = [endpoint.reg(item.data_ptr(), item.numel() * 4)[1] for item in tensors]
        pointers = [item.data_ptr() for item in tensors]
        sizes = [item.numel() * 4 for item in tensors]
        assert endpoint.sendv(conn_id, ids, pointers, sizes, len(tensors)), p2p.last_error()
        assert pipe.poll(120)
        assert pipe.recv() == "ok"
    finally:
        process.kill()
