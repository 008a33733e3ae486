# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""GPUs as the driver tells, asked without a CUDA toolkit."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from uccl.doctor.finding import NOTE, OK, PROBLEM, Finding

_SECTION = "GPUs"
_PCI_BYTES = 32
_KERNEL_DRIVER = Path("/proc/driver/nvidia/gpus")
_ACCESS_SUPPORTED, _ATOMICS_SUPPORTED = 0x02, 0x03  # of cuDeviceGetP2PAttribute


class Driver:
    """libcuda's calls for devices and their memory. OSError where there is none, RuntimeError where it cannot be used."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._check("cuInit", self._library.cuInit(0))

    @staticmethod
    def _check(what: str, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"{what}: CUDA error {code}")

    def _number(self, call: str, *arguments: object) -> int:
        value = ctypes.c_int()
        self._check(call, getattr(self._library, call)(ctypes.byref(value), *arguments))
        return value.value

    def version(self) -> tuple[int, int]:
        number = self._number("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    def count(self) -> int:
        return self._number("cuDeviceGetCount")

    def name(self, device: int) -> str:
        text = ctypes.create_string_buffer(256)
        self._check("cuDeviceGetName", self._library.cuDeviceGetName(text, len(text), device))
        return text.value.decode(errors="replace")

    def pci(self, device: int) -> str:
        text = ctypes.create_string_buffer(_PCI_BYTES)
        self._check("cuDeviceGetPCIBusId", self._library.cuDeviceGetPCIBusId(text, len(text), device))
        return text.value.decode().lower()

    def _context(self, device: int) -> ctypes.c_void_p:
        """The device's primary context, which is current on this thread from here on."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self._check(
                "cuDevicePrimaryCtxRetain", self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            )
            self._contexts[device] = context
        self._check("cuCtxSetCurrent", self._library.cuCtxSetCurrent(self._contexts[device]))
        return self._contexts[device]

    def allocate(self, device: int, size: int) -> int:
        self._context(device)
        address = ctypes.c_uint64()
        self._check("cuMemAlloc", self._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
        self._check("cuMemsetD8", self._library.cuMemsetD8_v2(address, ctypes.c_ubyte(1), ctypes.c_size_t(size)))
        self._check("cuCtxSynchronize", self._library.cuCtxSynchronize())
        return address.value

    def free(self, device: int, address: int) -> None:
        self._context(device)
        self._library.cuMemFree_v2(ctypes.c_uint64(address))

    @contextlib.contextmanager
    def pinned(self, device: int, size: int) -> Iterator[int]:
        """Host memory that the device reaches by itself."""
        self._context(device)
        pointer = ctypes.c_void_p()
        self._check("cuMemHostAlloc", self._library.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(size), 0))
        try:
            yield pointer.value or 0
        finally:
            self._library.cuMemFreeHost(pointer)

    def copy_to_host(self, device: int, target: int, source: int, size: int) -> None:
        self._context(device)
        code = self._library.cuMemcpyDtoH_v2(ctypes.c_void_p(target), ctypes.c_uint64(source), ctypes.c_size_t(size))
        self._check("cuMemcpyDtoH", code)

    def copy_from_host(self, device: int, target: int, source: int, size: int) -> None:
        self._context(device)
        code = self._library.cuMemcpyHtoD_v2(ctypes.c_uint64(target), ctypes.c_void_p(source), ctypes.c_size_t(size))
        self._check("cuMemcpyHtoD", code)

    def reach(self, one: int, other: int) -> None:
        """Lets one device copy to the other without a way round by host memory, where they can."""
        there = self._context(other)
        self._context(one)
        self._library.cuCtxEnablePeerAccess(there, 0)  # refused where they cannot, and the second time

    def copy_between(self, one: int, source: int, other: int, target: int, size: int) -> None:
        there, here = self._context(other), self._context(one)
        code = self._library.cuMemcpyPeer(
            ctypes.c_uint64(target), there, ctypes.c_uint64(source), here, ctypes.c_size_t(size)
        )
        self._check("cuMemcpyPeer", code)
        self._check("cuCtxSynchronize", self._library.cuCtxSynchronize())

    def link(self, one: int, other: int) -> str:
        """What the two reach each other by; nothing where they do not. Atomic operations go over NVLink alone."""
        if self._number("cuDeviceGetP2PAttribute", _ACCESS_SUPPORTED, one, other) == 0:
            return ""
        return "NVLink" if self._number("cuDeviceGetP2PAttribute", _ATOMICS_SUPPORTED, one, other) else "PCIe"


def find_gpus(built: str) -> Iterator[Finding]:
    """``built``: the version of CUDA that the engine was built with, empty for none."""
    try:
        driver = Driver()
    except OSError:
        present = _KERNEL_DRIVER.is_dir()
        yield Finding(
            _SECTION, "driver", "libcuda.so.1 is not there", PROBLEM if present else OK,
            "the kernel's driver is loaded, but this process has no libcuda (a container started without GPUs?)"
            if present else "",
        )  # fmt: skip
        return
    except RuntimeError as error:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        yield Finding(
            _SECTION, "driver", str(error), NOTE,
            f"CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else "no GPU can be used",
        )  # fmt: skip
        return
    major, minor = driver.version()
    count = driver.count()
    # A CUDA runtime takes drivers of its own major version and of later ones.
    old = bool(built) and major < int(built.split(".")[0])
    yield Finding(
        _SECTION, "driver", f"for CUDA {major}.{minor}, {count} GPUs", PROBLEM if old else OK,
        f"the engine was built with CUDA {built}: a newer driver, or a build with nvcc of CUDA {major}, moves GPU memory"
        if old else "",
    )  # fmt: skip
    yield from _devices(driver, count)


def _devices(driver: Driver, count: int) -> Iterator[Finding]:
    for device in range(count):
        pci = driver.pci(device)
        near = nearest_nics(pci)
        text = f"{driver.name(device)}, PCI {pci}" + (f", nearest to {', '.join(near)}" if near else "")
        yield Finding(_SECTION, f"GPU {device}", text)
    for device in range(count):
        others: dict[str, list[str]] = {}
        for other in range(count):
            if other != device:
                others.setdefault(driver.link(device, other), []).append(f"GPU {other}")
        for link, far in others.items():
            yield Finding(
                _SECTION, f"GPU {device}",
                f"{link} to {', '.join(far)}" if link else f"does not reach the memory of {', '.join(far)}",
                OK if link else NOTE,
                "" if link else "between those, bytes go through host memory (IOMMU or ACS may be in the way)",
            )  # fmt: skip


def nearest_nics(pci: str, devices: Path = Path("/sys/bus/pci/devices"), nics: Path = Path("/sys/class/net")) -> list[str]:
    """Network interfaces that share most of their way to the root with a GPU."""
    if not (devices / pci).exists():
        return []
    own = (devices / pci).resolve().parts
    shared = {}
    for nic in nics.iterdir():
        if not (nic / "device").exists():
            continue
        parts = (nic / "device").resolve().parts
        common = 0
        while common < min(len(own), len(parts)) and own[common] == parts[common]:
            common += 1
        if any(part.startswith("pci") for part in own[:common]):
            shared[nic.name] = common
    most = max(shared.values(), default=0)
    return sorted(name for name, common in shared.items() if common == most)
