#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the code of a compilation database, as many files at a time as there are cores.

Usage: tidy.py BUILD_FOLDER [FILE...]. Tests, benchmarks and examples are left out: clang's warnings and thread-safety
analysis see the first when the preset `dev` compiles them. A file that was found clean, and has not changed since, nor
any header of the project that it includes, is not looked at again.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

TIDY = "clang-tidy-19"
SECONDS = 600  # for one file
TEST = re.compile(r"_test\.cc$|^tests/|^bench/|^examples/")
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SEARCH = ("include", "src", "tests", "tools", "fuzz", "softnet", "nixl", ".")
NOISE = re.compile(r"^(\d+ warnings? generated|Suppressed \d+|Use -header-filter|\d+ warnings? treated as errors).*$")


def git_files(root):
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root,
                             check=True, capture_output=True, text=True)
    return set(listing.stdout.splitlines())


def commands(root, build, wanted):
    """File -> compiler arguments, for the C++ files that git knows."""
    known, found = git_files(root), {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not file.is_relative_to(root):
            continue
        name = file.relative_to(root).as_posix()
        if name in known and name.endswith(".cc") and not TEST.search(name):
            if not wanted or name in wanted:
                found[name] = entry.get("arguments") or shlex.split(entry["command"])
    return found


def closure(root, name):
    """The file and the project's headers that it includes, directly or not."""
    todo, seen = [name], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        for included in INCLUDE.findall((root / file).read_bytes()):
            for folder in (os.path.dirname(file), *SEARCH):
                path = os.path.normpath(os.path.join(folder, included.decode()))
                if (root / path).is_file():
                    todo.append(path)
                    break
    return sorted(seen)


def fingerprint(root, name, arguments, version):
    digest = hashlib.sha256()
    portable = " ".join(arguments).replace(str(root), "")
    digest.update(f"{version}\n{portable}\n".encode())
    for file in [*closure(root, name), ".clang-tidy", "scripts/tidy.py"]:
        digest.update(file.encode() + b"\0" + (root / file).read_bytes())
    return digest.hexdigest()


def look(root, build, name):
    run = [TIDY, "--quiet", "-p", str(build), str(root / name)]
    try:
        done = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{name}: not done within {SECONDS} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line and not NOISE.match(line)]
    return "\n".join(lines) or f"{name}: {run[0]} failed with status {done.returncode}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    build = pathlib.Path(sys.argv[1]).resolve()
    version = subprocess.run([TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "uccl_p2p" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    files = commands(root, build, set(sys.argv[2:]))
    marks = {name: cache / fingerprint(root, name, arguments, version) for name, arguments in files.items()}
    todo = [name for name in sorted(files) if not marks[name].exists()]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, findings in zip(todo, pool.map(lambda n: look(root, build, n), todo)):
            if findings:
                bad += 1
                print(findings, flush=True)
            else:
                marks[name].touch()
    print(f"{len(files)} files, {len(files) - len(todo)} unchanged since they were clean, {bad} with findings")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
