# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""GPUs as the driver tells, asked without a CUDA toolkit."""

from __future__ import annotations

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
    """libcuda's device calls. OSError where there is none, RuntimeError where it cannot be used."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
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
