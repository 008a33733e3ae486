#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, against the table of docs/architecture.md.

Usage: check_layers.py [ROOT]. Prints one line for each breach and exits with 1 if there is any.
"""

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple, Optional

# Public headers that hold plain values: the only part of the API that lower layers may know.
VALUES = tuple(f"include/p2p/{name}.h" for name in ("api", "host_port", "log", "memory", "nccl_net_options", "options",
                                                     "rdma_options", "region_options", "result", "stats",
                                                     "write_log"))

# Folder of the including file -> prefixes that it may include. The longest matching folder counts. `{own}` is
# the including file's folder below the key: `transport/tcp/` for a file of src/transport/tcp.
LAYERS = {
    "include/p2p/": ("include/p2p/",),
    "include/uccl_engine.h": ("include/p2p/",),
    "include/tcpx/": ("include/tcpx/", *VALUES),
    "src/base/": ("src/base/", *VALUES),
    "src/wire/": ("src/wire/", "src/base/", *VALUES),
    "src/drivers/": ("{own}", "src/base/", *VALUES),
    "src/kernels/": ("src/kernels/", *VALUES),
    # Copying and staging of device memory, for any transport.
    "src/device/": ("src/device/", "src/base/", "src/drivers/cuda/", "src/drivers/topology/",
                    "src/kernels/", *VALUES),
    "src/transport/": ("{own}", "src/transport/*", "src/base/", "src/drivers/", "src/device/", "src/kernels/",
                       *VALUES),
    "src/transport/*": ("src/transport/*", "src/base/", "src/drivers/crypto/", *VALUES),
    "src/engine/": ("src/engine/", "src/transport/*", "src/wire/", "src/base/", "src/drivers/socket/",
                    "src/drivers/topology/", "src/drivers/crypto/", "include/p2p/",
                    "src/device/service.h", "src/device/staging.h", "src/device/digester.h",
                    "src/drivers/cuda/memory.h", "src/drivers/cuda/place.h", "src/drivers/cuda/mark.h"),  # docs/decisions/cuda-place.md
    # The bodies of the public classes.
    "src/api/": ("src/api/", "src/engine/", "src/transport/*", "src/base/", "include/p2p/",
                 "src/drivers/cuda/place.h", "src/drivers/http/", "src/drivers/socket/"),
    "src/tcpx/": ("src/tcpx/", "include/tcpx/", "src/drivers/nccl_net/", "src/drivers/cuda/",
                  "src/drivers/socket/", "src/device/", "src/kernels/", "src/base/", *VALUES),
    "softnet/": ("softnet/", "src/drivers/nccl_net/abi/", "src/drivers/cuda/", "src/device/", "src/base/", *VALUES),
    "nixl/": ("nixl/", "include/"),
    "weights/": ("weights/", "include/"),
    "python/": ("python/", "include/"),
    "examples/": ("include/",),
    "tools/": ("tools/", "include/"),
    "bench/": ("bench/", "include/"),
    # Code that looks inside on purpose.
    "bench/micro/": ("",),
    "fuzz/": ("",),
    "tests/": ("",),
    "tests/docs/": ("include/p2p/",),
    "tests/install/": ("include/",),
}

# Layer -> its folders, lowest first: each includes itself and those before it; files at the top include all.
ROOMS = {
    "src/engine/": ("loop", "observe", "memory", "request", "schedule", "session", "listen", "channels", "messaging",
                    "transfer"),
    "src/transport/tcp/": ("connect", "stream", "staging", "requests"),
    "src/transport/cuda_ipc/": ("memory", "requests", "copies"),
    "python/src/": ("convert",),
}
# Of those, the ones that see less: folder -> what else of the layer it includes.
ROOMS_ONLY = {"src/engine/session": ("loop",), "src/engine/listen": ("loop",)}

# Files with a rule of their own, in addition to their folder's.
EXTRA = {
    "src/api/builtin_transports.cc": re.compile(r"src/transport/(\w+)/\1\.h"),
}
# What unit tests beside the code may use besides what the code may: folder -> prefixes.
UNIT_TEST_EXTRA = {
    "": ("tests/support/",),
    "src/kernels/": ("src/drivers/cuda/",),
}

# Foreign headers -> the only places for them.
FOREIGN = (
    (r"tl/expected\.hpp", ("include/p2p/result.h",)),
    (r"(cuda|cuda_runtime|cuda_runtime_api|cuda_fp16|device_launch_parameters|nvml)\w*\.h|cuda/.*|cooperative_groups.*",
     ("src/drivers/cuda/", "src/kernels/", "tests/hardware/", "tests/softgpu/")),
    (r"infiniband/.*|rdma/.*", ("src/drivers/verbs/",)),
    (r"openssl/.*", ("src/drivers/crypto/", "tests/support/certificates.h")),
    (r"boost/.*", ("src/drivers/http/",)),
    (r"hwloc.*", ("src/drivers/topology/",)),
    (r"nccl.*\.h", ("src/drivers/nccl_net/",)),
    (r"spdlog/.*", ("src/base/log.cc",)),
    (r"xxhash.h", ("src/base/block_digest.cc", "src/base/block_hash", "src/kernels/xxh3_test.cc", "tests/softgpu/")),
    (r"fmt/.*", ("src/", "tools/", "softnet/", "nixl/", "tests/", "bench/", "fuzz/")),
    (r"gtest/.*|gmock/.*", ("tests/", "_test.cc", "_testing.h", "_pair.h")),
    (r"benchmark/.*", ("bench/",)),
    (r"CLI/.*", ("tools/", "bench/")),
    (r"nlohmann/.*", ("tools/", "tests/", "bench/")),
    (r"nanobind/.*|Python\.h", ("python/",)),
)

# The one reader of the environment for each thing that is shipped.
GETENV_FILES = {
    "src/api/options.cc",
    "src/api/local_listing.cc",  # the system's folder for what runs now; no option of ours
    "src/api/directory_drivers.cc",  # a variable that the application names
    "softnet/settings.cc",
    "src/drivers/nccl_net/defaults.cc",  # settings of somebody else's plugin, which has no other way to be told
    "src/tcpx/environment.cc",  # judges the variables of somebody else's plugin; has no options of its own
}
GETENV_FOLDERS = ("include/", "src/", "softnet/", "nixl/", "weights/", "tools/", "examples/")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")
SEARCH = ("include", "src", "tests", "tools", "bench", "fuzz", "softnet", "nixl", "weights", "python/src", "python", ".")


class Include(NamedTuple):
    line: int
    written: str
    path: Optional[str]  # within the repository; None: not ours


def tracked_sources(root):
    listing = subprocess.run(["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"],
                             check=True, capture_output=True, text=True)
    return sorted(p for p in listing.stdout.splitlines()
                  if p.endswith((".h", ".cc", ".cu", ".cuh")) and (root / p).is_file())


def resolve(root, source, written):
    for folder in (str(pathlib.PurePosixPath(source).parent), *SEARCH):
        candidate = root / folder / written
        if candidate.is_file():
            return candidate.resolve().relative_to(root).as_posix()
    return None


def includes(root, source, text):
    for number, line in enumerate(text.splitlines(), 1):
        if match := INCLUDE.match(line):
            quoted, written = match.group(1) == '"', match.group(2)
            yield Include(number, written, resolve(root, source, written) if quoted else None)


def matches(path, rule):
    """`folder/` and a file match as a prefix; `folder/*` matches the files of that very folder."""
    if rule.endswith("/*"):
        return str(pathlib.PurePosixPath(path).parent) == rule[:-2]
    return path.startswith(rule)


def layer_of(source):
    keys = [key for key in LAYERS if matches(source, key)]
    return max(keys, key=lambda key: (len(key), key.endswith("*")), default=None)


def may_include(source, key, target):
    below = source[len(key):].split("/")
    own = key + below[0] + "/" if len(below) > 1 else key
    rules = [own if rule == "{own}" else rule for rule in LAYERS[key]]
    if source.endswith("_test.cc"):
        rules += [rule for folder, more in UNIT_TEST_EXTRA.items() if source.startswith(folder) for rule in more]
    extra = EXTRA.get(source)
    return any(matches(target, rule) for rule in rules) or (extra is not None and extra.fullmatch(target))


def room_breach(source, target):
    """The layer within which a file includes a folder that stands above its own; None: it does not."""
    layer = next((key for key in ROOMS if source.startswith(key) and target.startswith(key)), None)
    if layer is None or source.endswith("_test.cc"):
        return None
    own, other = ([*path.removeprefix(layer).split("/")[:-1], None][0] for path in (source, target))
    if own is None or own == other:
        return None
    order = ROOMS[layer]
    if own in order and other in ROOMS_ONLY.get(layer + own, order[:order.index(own)]):
        return None
    return layer


def foreign_breach(source, written):
    for pattern, places in FOREIGN:
        if re.fullmatch(pattern, written):
            if source.startswith("src/kernels/") and source.endswith(".h"):
                return "headers of src/kernels are plain C++"
            if not any(source.startswith(p) or (p.startswith("_") and source.endswith(p)) for p in places):
                return "belongs only in " + ", ".join(places)
    return None


def breaches(root, source):
    text = (root / source).read_text(encoding="utf-8")
    key = layer_of(source)
    if key is None:
        yield 1, "lies in no folder of the layer table (scripts/check_layers.py)"
        return
    for line, written, path in includes(root, source, text):
        if path is None:
            if reason := foreign_breach(source, written):
                yield line, f"includes {written}, which {reason}"
        elif not may_include(source, key, path):
            yield line, f"includes {path}, which {key} may not"
        elif layer := room_breach(source, path):
            yield line, f"includes {path}, which stands above it in the order of {layer.rstrip('/')}"
    if source.startswith(GETENV_FOLDERS) and source not in GETENV_FILES and not source.endswith("_test.cc"):
        for number, line in enumerate(text.splitlines(), 1):
            if GETENV.search(line.split("//")[0]):
                yield number, "reads the environment; add a row to src/api/engine_variables.cc instead"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    sources = tracked_sources(root)
    found = [f"{source}:{line}: {text}" for source in sources for line, text in breaches(root, source)]
    print("\n".join(found) if found else f"layers: {len(sources)} files, no breach")
    return 1 if found or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
