#!/usr/bin/env python3
# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the code of a compilation database, as many files at a time as there are cores.

Usage: tidy.py BUILD_FOLDER [FILE...]. Tests, benchmarks and examples are left out: clang's warnings and thread-safety
analysis see the first when the preset `dev` compiles them. Sources that are compiled together (cmake/Unity.cmake) are
looked at together, in half of the time. What was found clean, and has not changed since, nor any header of the project
that it includes, is not looked at again.
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
# The analyzer looks at the file that it is given; where that only includes sources, at what it includes.
FOLLOW = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-opt-analyze-headers"]
TEST = re.compile(r"_test\.cc$|^tests/|^bench/|^examples/")
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
SEARCH = ("include", "src", "tests", "tools", "fuzz", "softnet", "nixl", "weights", ".")
NOISE = re.compile(r"^(\d+ warnings? generated|Suppressed \d+|Use -header-filter|\d+ warnings? treated as errors).*$")


def git_files(root):
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root,
                             check=True, capture_output=True, text=True)
    return set(listing.stdout.splitlines())


def is_made(file):
    """The build has made it, of sources (cmake/Unity.cmake)."""
    return "/unity/" in file.as_posix()


def sources_of(root, file):
    """The names of the sources that a file of the compilation database stands for."""
    if not is_made(file):
        return [file.relative_to(root).as_posix()] if file.is_relative_to(root) else []
    return [included.decode() for included in INCLUDE.findall(file.read_bytes())]


def commands(root, build, wanted):
    """File -> its sources and the compiler's arguments, for the C++ sources that git knows."""
    known, found = git_files(root), {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        sources = [name for name in sources_of(root, file)
                   if name in known and name.endswith(".cc") and not TEST.search(name)]
        if sources and (not wanted or wanted.intersection(sources)):
            found[file] = (sources, entry.get("arguments") or shlex.split(entry["command"]))
    return found


def closure(root, names):
    """The files and the project's headers that they include, directly or not."""
    todo, seen = list(names), set()
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


def fingerprint(root, sources, arguments, version):
    digest = hashlib.sha256()
    portable = " ".join(arguments).replace(str(root), "")
    digest.update(f"{version}\n{portable}\n{sources}\n".encode())
    for file in [*closure(root, sources), ".clang-tidy", "scripts/tidy.py"]:
        digest.update(file.encode() + b"\0" + (root / file).read_bytes())
    return digest.hexdigest()


def look(root, build, file):
    run = [TIDY, "--quiet", "-p", str(build), *(FOLLOW if is_made(file) else []), str(file)]
    try:
        done = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{file}: not done within {SECONDS} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line and not NOISE.match(line)]
    return "\n".join(lines) or f"{file}: {run[0]} failed with status {done.returncode}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    build = pathlib.Path(sys.argv[1]).resolve()
    version = subprocess.run([TIDY, "--version"], check=True, capture_output=True, text=True).stdout
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "uccl_p2p" / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    files = commands(root, build, set(sys.argv[2:]))
    marks = {file: cache / fingerprint(root, *about, version) for file, about in files.items()}
    # The longest first, or one core is left with one of them at the end.
    todo = sorted((file for file in files if not marks[file].exists()), key=lambda file: (-len(files[file][0]), file))
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, findings in zip(todo, pool.map(lambda each: look(root, build, each), todo)):
            if findings:
                bad += 1
                print(findings, flush=True)
            else:
                marks[file].touch()
    count = sum(len(sources) for sources, _ in files.values())
    old = count - sum(len(files[file][0]) for file in todo)
    print(f"{count} files, {old} unchanged since they were clean; findings in {bad} of {len(todo)} runs")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
