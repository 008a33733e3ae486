# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Who may connect: keys with names, and certificates."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from other_process import Pair

from uccl import p2p

NAMED = {"decode-1": "the secret of the first one", "decode-2": "the secret of the second one"}


@pytest.fixture
def keys(tmp_path):
    """Files with one key each, and one with both."""
    for name, secret in NAMED.items():
        (tmp_path / name).write_text(f"{name}:{secret}\n")
    (tmp_path / "both").write_text("".join(f"{name}:{secret}\n" for name, secret in NAMED.items()))
    for file in tmp_path.iterdir():
        file.chmod(0o600)
    return tmp_path


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path):
    """Keywords for endpoints of two names that one authority has signed."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make certificates with")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    authority, authority_key = tmp_path / "ca.pem", tmp_path / "ca.key"
    openssl("req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", authority_key, "-out", authority)
    made = {}
    for name in NAMED:
        key, request, certificate = (tmp_path / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        openssl("req", *curve, "-subj", f"/O=cluster/CN={name}", "-keyout", key, "-out", request)
        openssl(
            "x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-CAcreateserial",
            "-out", certificate,
        )  # fmt: skip
        key.chmod(0o600)
        made[name] = {"tls_ca": str(authority), "tls_certificate": str(certificate), "tls_key": str(key)}
    return made


def meet(accepting, dialling):
    """(identity seen by who accepts, by who dials), or why they do not meet."""
    with (
        p2p.Endpoint(0, listen_address="127.0.0.1", **accepting) as server,
        p2p.Endpoint(0, listen_address="127.0.0.1", **dialling) as client,
        ThreadPoolExecutor() as pool,
    ):
        waiting = pool.submit(server.accept, 20)
        address, port, gpu = server.parse_metadata(server.get_metadata())
        ok, conn = client.connect(address, gpu, port)
        if not ok:
            reason = p2p.last_error()
            server.close()
            return reason
        accepted = waiting.result()
        assert accepted[0]
        return server.peer(accepted[3])["identity"], client.peer(conn)["identity"]


class Owner:
    """An endpoint whose memory a connected peer of this process asks for, 4096 bytes on each side."""

    def __init__(self, owner, peer):
        self.endpoint = owner
        address, port, gpu = owner.parse_metadata(owner.get_metadata())
        ok, self._conn = peer.connect(address, gpu, port)
        assert ok, p2p.last_error()
        self.memory, self.peers = np.full(4096, 7, np.uint8), np.full(4096, 1, np.uint8)
        ok, self._mine = peer.reg(self.peers.ctypes.data, self.peers.nbytes)
        assert ok, p2p.last_error()

    def described(self, **options):
        """The description of the memory, registered with these options."""
        ok, region = self.endpoint.reg(self.memory.ctypes.data, self.memory.nbytes, **options)
        assert ok, p2p.last_error()
        return self.endpoint.advertise(region, self.memory.ctypes.data, self.memory.nbytes)[1]

    def ask(self, call, blob):
        """What the peer's `read` or `write` of all of it returns."""
        return call(self._conn, self._mine, self.peers.ctypes.data, self.peers.nbytes, blob)


def test_names_of_keys(keys):
    both, second = ({"key_file": str(keys / name)} for name in ("both", "decode-2"))
    assert meet(both, second) == ("decode-2", "decode-2")
    assert meet(both, both) == ("decode-1", "decode-1")
    assert "no key named 'decode-1'" in meet(second, both)


def test_who_may_connect(keys):
    both, second = ({"key_file": str(keys / name)} for name in ("both", "decode-2"))
    assert meet({**both, "allow": "decode-2,decode-3"}, second) == ("decode-2", "decode-2")
    assert "'decode-1' is not among those that may connect" in meet({**both, "allow": "decode-2"}, both)


def test_certificates(certificates, keys):
    first, second = certificates["decode-1"], certificates["decode-2"]
    assert meet(first, second) == ("decode-2", "decode-1")
    assert "'decode-2' is not among those that may connect" in meet({**first, "allow": "decode-1"}, second)
    assert "this side has a key, the peer has a certificate" in meet(first, {"key_file": str(keys / "both")})


def test_what_does_not_go_together(certificates, keys):
    with pytest.raises(p2p.Error, match="not both"):
        p2p.Endpoint(0, **certificates["decode-1"], key_file=str(keys / "both"))
    with pytest.raises(p2p.Error, match="UCCL_P2P_ALLOW"):
        p2p.Endpoint(0, allow="decode-1")


def test_regions_are_read_only_and_for_named_peers(keys):
    with (
        p2p.Endpoint(0, listen_address="127.0.0.1", key_file=str(keys / "both"), transports=["tcp"]) as owner,
        p2p.Endpoint(
            0, listen_address="127.0.0.1", key_file=str(keys / "decode-1"), transports=["tcp"]
        ) as peer,
    ):
        asked = Owner(owner, peer)
        assert not asked.ask(peer.write, asked.described(read_only=True))
        assert "read-only" in p2p.last_error()
        assert not asked.ask(peer.write, asked.described(peers=["decode-2"]))
        assert "'decode-1' is none of them" in p2p.last_error()
        assert (asked.memory == 7).all()
        assert asked.ask(peer.read, asked.described(read_only=True, peers=["decode-1"]))
        assert (asked.peers == 7).all()


def test_data_is_encrypted_where_both_sides_require_it(keys, other, monkeypatch):
    monkeypatch.setenv("UCCL_P2P_TLS", "require")
    pair = Pair(other, key_file=str(keys / "both"), transports=["tcp"], tls="require")
    try:
        size = 3_000_001
        ours, mine, here = pair.memory(size, 5)
        other.memory("theirs", size)
        blob = other.advertised("theirs")
        assert pair.ep.write(pair.conn, mine, here, size, blob), p2p.last_error()
        assert other.contents("theirs") == bytes([5]) * size
        other.fill("theirs", bytes(range(256)))
        assert pair.ep.read(pair.conn, mine, here, size, blob), p2p.last_error()
        assert ours.tobytes() == bytes(range(256)) + bytes([5]) * (size - 256)
        route = pair.ep.routes(pair.conn)[0]
        assert route["transport"] == "tcp"
        assert "TLS" in route["detail"]
        stats = pair.ep.stats()
        assert stats["channels"] == stats["channels_encrypted"] > 0
    finally:
        pair.close()


def test_without_keys_nothing_is_encrypted(monkeypatch):
    monkeypatch.setenv("UCCL_P2P_TLS", "require")
    with pytest.raises(p2p.Error, match="UCCL_P2P_KEY_FILE"):
        p2p.Endpoint(0, listen_address="127.0.0.1")


def test_regions_expire():
    with (
        p2p.Endpoint(0, listen_address="127.0.0.1") as owner,
        p2p.Endpoint(0, listen_address="127.0.0.1") as peer,
    ):
        asked = Owner(owner, peer)
        assert asked.ask(peer.write, asked.described(expires=3600))
        assert (asked.memory == 1).all()
        start, blob = time.monotonic(), asked.described(expires=0.05)
        while asked.ask(peer.write, blob):
            assert time.monotonic() < start + 20
        assert time.monotonic() >= start + 0.05
        assert "it has expired" in p2p.last_error()
        asked.memory[:] = 7
        assert not asked.ask(peer.read, blob)
        assert (asked.peers == 1).all()
        for never in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="above 0"):
                asked.described(expires=never)
