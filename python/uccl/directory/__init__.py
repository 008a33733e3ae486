# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Finds endpoints by names that the program gives them, where addresses are not known beforehand.

    from uccl import directory, p2p

    with directory.use("etcd://10.0.0.5:2379") as names, p2p.Endpoint(0, 2) as endpoint:
        names.publish("prefill-0", endpoint)
        peer = names.lookup("decode-0", timeout=30).connect(endpoint)

What is published lives for ``lease`` seconds and is renewed by a thread until it is withdrawn. A directory that is down
is tried again by that thread, and costs connections nothing: nobody asks it once he is connected.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from uccl.directory.base import Change, Directory, DirectoryError, Entry
from uccl.directory.dns import DnsDirectory
from uccl.directory.etcd import EtcdDirectory
from uccl.directory.files import FolderDirectory, StaticDirectory
from uccl.directory.ray_kv import RayDirectory
from uccl.directory.tcpstore import TcpStoreDirectory

__all__ = [
    "Change",
    "Directory",
    "DirectoryError",
    "DnsDirectory",
    "Entry",
    "EtcdDirectory",
    "FolderDirectory",
    "RayDirectory",
    "StaticDirectory",
    "TcpStoreDirectory",
    "use",
]

_DRIVERS: dict[str, Callable[[str, float], Directory]] = {
    "static": lambda where, lease: StaticDirectory(where, lease),
    "folder": lambda where, lease: FolderDirectory(where, lease),
    "tcpstore": lambda where, lease: TcpStoreDirectory(where, lease),
    "etcd": lambda where, lease: EtcdDirectory(f"http://{where}", lease),
    "etcds": lambda where, lease: EtcdDirectory(f"https://{where}", lease),
    "ray": lambda where, lease: RayDirectory(where, lease),
    "k8s": lambda where, lease: DnsDirectory(where, lease),
}


def use(where: str, lease: float = 6.0) -> Directory:
    """The directory at ``where``; nothing is asked of it yet. ``lease``, in seconds, from 1 to 10, is how long what this
    process publishes outlives it.

    * ``static://name=host:port,...``, ``static:///path/of/a/file`` with one ``name=host:port`` a line, or
      ``static://$VARIABLE`` that holds either;
    * ``folder:///path``, which all processes see;
    * ``tcpstore://host:port`` of a ``torch.distributed.TCPStore``;
    * ``etcd://host:port`` or, by TLS, ``etcds://host:port`` (port 2379 if none is named); ``/prefix`` may follow;
    * ``ray://``, or ``ray://part``, in the store of the Ray cluster that this process is in;
    * ``k8s://service.namespace.svc:port``, a headless service, whose pods all listen at that port.

    Raises ValueError for anything else.
    """
    kind = urlsplit(where).scheme
    driver = _DRIVERS.get(kind)
    if driver is None or not where.startswith(f"{kind}://"):
        raise ValueError(f"use the directory {where!r}: one of {', '.join(f'{each}://' for each in _DRIVERS)}")
    return driver(where[len(kind) + 3 :], lease)
