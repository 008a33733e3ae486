#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Usage: wheel_contents.py [--cuda12] WHEEL...

What is inside, and that its binaries need nothing that an older system lacks; with --cuda12 that drivers of CUDA 12
take the kernels.
"""

import configparser
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

# What every system with glibc has; the C++ library is the one of GCC 11, as glibc 2.34's systems have it.
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-[a-z0-9-]+)\.so\.\d+")
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
BINARIES = {"bin/p2p-perf", "bin/tcpx", "lib/libnccl-net-soft.so", "lib/libtcpx_p2p.so.0", "nixl/libplugin_TCPX.so"}
FILES = {"_p2p.pyi", "aio.pyi", "py.typed", "p2p.py", "include/tcpx/interface.h", "doctor/__main__.py"}
# Those with kernels. Machine code for 8.0 and 9.0 must be of the format (ABI) that every driver of CUDA 12 reads; GPUs of
# 10.0 and later ask for a driver of 12.8 themselves. PTX is for GPUs that come later.
WITH_KERNELS = re.compile(r"uccl/(_p2p\..*|bin/.*|lib/libtcpx_p2p.*|nixl/.*)")
KERNELS = {80: 7, 90: 7, 100: 8, 120: 8}
NEWEST_PTX = (8, 8)
COMMANDS = {"p2p-doctor", "p2p-perf", "p2p-top", "tcpx"}


def readelf(what, path):
    return subprocess.run(["readelf", "-W", what, path], check=True, capture_output=True, text=True).stdout


def problems_of_binary(path):
    dynamic = readelf("-d", path)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    for library in needed:
        if not LIBRARIES.fullmatch(library):
            yield f"needs {library}"
    if not needed:
        yield "has no dynamic section"
    # Room for static TLS may be gone where others are loaded first, as torch is: then an import fails.
    if match := re.search(r"\((RPATH|RUNPATH|TEXTREL)\).*|STATIC_TLS", dynamic):
        yield f"has {match.group(0)}"
    for family, version in set(re.findall(r"Name: ([A-Z]+)_([0-9.]+)\b", readelf("-V", path))):
        if tuple(map(int, version.split("."))) > NEWEST.get(family, (1000,)):
            yield f"needs {family}_{version}"


def kernels(data):
    """Compute capability -> ABI of the machine code for GPUs (ELF files of machine 190) in a binary."""
    found = {}
    for match in re.finditer(rb"\x7fELF\x02\x01\x01", data):
        start = match.start()
        (machine,) = struct.unpack_from("<H", data, start + 18)
        if machine == 190:
            abi = data[start + 8]
            (flags,) = struct.unpack_from("<I", data, start + 48)
            found[flags & 0xFF if abi < 8 else flags >> 8 & 0xFF] = abi
    return found


def problems_of_kernels(path):
    data = path.read_bytes()
    if (found := kernels(data)) != KERNELS:
        yield f"has kernels of (compute capability: ABI) {found}, not {KERNELS}"
    versions = {tuple(map(int, match)) for match in re.findall(rb"\n\.version (\d+)\.(\d+)\n", data)}
    if not versions or max(versions) > NEWEST_PTX:
        yield f"has PTX of {sorted(versions)}, not of {NEWEST_PTX} or older"


def problems_of_tags(name):
    """The file's name says for which interpreters and systems it is."""
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    minor = int(python.removeprefix("cp3"))
    if abi != ("abi3" if minor >= 12 else python):
        yield f"is for {python} with {abi}"
    if "manylinux_2_34_" not in platform:
        yield f"is for {platform}"


def problems_of_wheel(wheel, folder, cuda12):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    package = folder / "uccl"
    present = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    modules = {name for name in present if re.fullmatch(r"_p2p\.[^/]*so", name)}
    if len(modules) != 1:
        yield f"has {len(modules)} extension modules"
    for name in sorted((BINARIES | FILES) - present):
        yield f"lacks uccl/{name}"
    elves = {
        str(path.relative_to(folder)) for path in folder.rglob("*")
        if path.is_file() and path.open("rb").read(4) == b"\x7fELF"
    }  # fmt: skip
    for name in sorted(elves ^ {f"uccl/{one}" for one in BINARIES | modules}):
        yield f"{name}: a binary too many, or none"
    for name in sorted(elves):
        for problem in problems_of_binary(folder / name):
            yield f"{name} {problem}"
    for name in sorted(filter(WITH_KERNELS.fullmatch, elves if cuda12 else ())):
        for problem in problems_of_kernels(folder / name):
            yield f"{name} {problem}"
    commands = configparser.ConfigParser()
    commands.read(folder.glob("*.dist-info/entry_points.txt"))
    if missing := COMMANDS - set(commands["console_scripts"] if commands.has_section("console_scripts") else ()):
        yield f"has no command {', '.join(sorted(missing))}"
    if not list(folder.glob("*.dist-info/**/LICENSE")):
        yield "has no license"


def main():
    failed = False
    cuda12 = sys.argv[1:2] == ["--cuda12"]
    wheels = sys.argv[1 + cuda12 :]
    for wheel in map(pathlib.Path, wheels):
        with tempfile.TemporaryDirectory() as folder:
            problems = [*problems_of_tags(wheel.name), *problems_of_wheel(wheel, pathlib.Path(folder), cuda12)]
        print(f"{wheel.name}: {'good' if not problems else 'BAD'}, {wheel.stat().st_size / 1e6:.1f} MB")
        for problem in problems:
            print(f"  {problem}")
        failed |= bool(problems)
    return 1 if failed or not wheels else 0


if __name__ == "__main__":
    sys.exit(main())
