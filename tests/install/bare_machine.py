# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What bare_root.sh runs in there: everything that the package has, once, on a machine without anything else."""

import ctypes
import glob
import os
import subprocess
import sys

import two_processes

from uccl import files, nixl

_BYTES = 8 << 20


def pattern(seed: int) -> bytes:
    return bytes((seed + index * 131 + (index >> 8)) & 0xFF for index in range(1 << 16)) * (_BYTES >> 16)


def serve(endpoint, conn_id, pipe):
    """Has memory that the client writes into, and checks every byte."""
    memory = ctypes.create_string_buffer(_BYTES)
    ok, region = endpoint.reg(ctypes.addressof(memory), _BYTES)
    two_processes.require(ok)
    ok, blob = endpoint.advertise(conn_id, region, ctypes.addressof(memory), _BYTES)
    two_processes.require(ok)
    pipe.send_bytes(blob)
    for seed in (1, 2):
        pipe.recv_bytes()
        pipe.send_bytes(b"right" if memory.raw == pattern(seed) else b"wrong")


def use(endpoint, conn_id, pipe):
    blob = pipe.recv_bytes()
    for seed in (1, 2):
        source = ctypes.create_string_buffer(pattern(seed), _BYTES)
        ok, region = endpoint.reg(ctypes.addressof(source), _BYTES)
        two_processes.require(ok)
        two_processes.require(endpoint.write(conn_id, region, ctypes.addressof(source), _BYTES, blob))
        pipe.send_bytes(b"written")
        assert pipe.recv_bytes() == b"right", "other bytes came"
    print(f"{_BYTES} bytes by {endpoint.routes(conn_id)[0]['transport']}")


def run(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=100, check=False)
    print(f"{os.path.basename(program)} {' '.join(words)}: {done.returncode}")
    return done


def main():
    for absent in ("libcrypto", "libssl", "libcuda", "libibverbs"):
        assert not glob.glob(f"/usr/lib/**/{absent}*", recursive=True), f"this root has {absent}"
    assert not any(map(os.path.exists, ("/usr/bin/gcc", "/usr/bin/cc", "/usr/bin/sh", "/dev/nvidiactl")))

    for transports in ("", "tcp"):  # the best that there is, and the one between hosts
        os.environ["UCCL_P2P_TRANSPORT"] = transports
        two_processes.run(use, serve)
    # With a key, for which OpenSSL's code is needed.
    with open("/tmp/key", "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="ascii") as key:
        key.write("a secret of more than sixteen letters")
    os.environ["UCCL_P2P_KEY_FILE"] = "/tmp/key"
    two_processes.run(use, serve)

    assert ctypes.CDLL(str(nixl.plugin())).nixl_plugin_init
    assert ctypes.CDLL(str(files.softnet())).ncclNetPlugin_v7
    assert ctypes.CDLL(str(files.tcpx_library())).tcpx_get_device_count
    assert files.tcpx_header().read_text().count("tcpx_get_device_count")
    done = run(files.program("p2p-perf"), "local", "--transport", "tcp", "--size", "64K", "--duration", "0.2")
    assert done.returncode == 0, done.stderr
    done = run(files.program("tcpx"), "discover", "--plugin", str(files.softnet()))
    assert done.returncode in (0, 1) and "lo" in done.stdout + done.stderr, done.stderr
    done = run(sys.executable, "-m", "uccl.doctor", "--json")
    assert done.returncode in (0, 1) and '"healthy"' in done.stdout, done.stderr
    print(f"CUDA {'of the build: ' + p2p_cuda() if p2p_cuda() else 'was absent at the build'}")


def p2p_cuda():
    import uccl

    return uccl.__cuda__


if __name__ == "__main__":
    main()
