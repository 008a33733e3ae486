#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Usage: wheel_contents.py WHEEL...: what is inside, and that its binaries need nothing that an older system lacks."""

import configparser
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# What every system with glibc has; the C++ library is the one of GCC 11, as glibc 2.34's systems have it.
LIBRARIES = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-[a-z0-9-]+)\.so\.\d+")
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (7, 0, 0)}
BINARIES = {"bin/p2p-perf", "bin/tcpx", "lib/libnccl-net-soft.so", "lib/libtcpx_p2p.so.0", "nixl/libplugin_TCPX.so"}
FILES = {"_p2p.pyi", "py.typed", "p2p.py", "include/tcpx/interface.h", "doctor/__main__.py"}
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
    if match := re.search(r"\((RPATH|RUNPATH|TEXTREL)\).*", dynamic):
        yield f"has {match.group(0)}"
    for family, version in set(re.findall(r"Name: ([A-Z]+)_([0-9.]+)\b", readelf("-V", path))):
        if tuple(map(int, version.split("."))) > NEWEST.get(family, (1000,)):
            yield f"needs {family}_{version}"


def problems_of_tags(name):
    """The file's name says for which interpreters and systems it is."""
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    minor = int(python.removeprefix("cp3"))
    if abi != ("abi3" if minor >= 12 else python):
        yield f"is for {python} with {abi}"
    if "manylinux_2_34_" not in platform:
        yield f"is for {platform}"


def problems_of_wheel(wheel, folder):
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
    commands = configparser.ConfigParser()
    commands.read(folder.glob("*.dist-info/entry_points.txt"))
    if missing := COMMANDS - set(commands["console_scripts"] if commands.has_section("console_scripts") else ()):
        yield f"has no command {', '.join(sorted(missing))}"
    if not list(folder.glob("*.dist-info/**/LICENSE")):
        yield "has no license"


def main():
    failed = False
    for wheel in map(pathlib.Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            problems = [*problems_of_tags(wheel.name), *problems_of_wheel(wheel, pathlib.Path(folder))]
        print(f"{wheel.name}: {'good' if not problems else 'BAD'}, {wheel.stat().st_size / 1e6:.1f} MB")
        for problem in problems:
            print(f"  {problem}")
        failed |= bool(problems)
    return 1 if failed or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
