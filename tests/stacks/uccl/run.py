# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""UCCL's own tests of uccl.p2p, unmodified, on host memory: run.py CHECKOUT.

They are programs that start their processes themselves and end with 0 also where one of those failed, so what they print
is looked at as well. Those left out are of other hardware, of compression, or named with a reason in docs/stacks.md.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

SECONDS = 180
TESTS = (
    "test_engine_send", "test_engine_read", "test_engine_write", "test_engine_metadata", "test_engine_nvlink",
    "test_engine_nvlink_metadata", "test_engine_onesided_ipc", "test_remove_remote_endpoint",
)  # fmt: skip


def passes(program):
    host = pathlib.Path(__file__).parent / "host"
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, str(program)]
        if "init_process_group" in program.read_text():
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        try:
            status = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": str(host)}, stdout=said, stderr=subprocess.STDOUT,
                timeout=SECONDS, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            status = f"not done within {SECONDS} s"
        said.seek(0)
        text = said.read()
    good = status == 0 and "Traceback" not in text
    print(f"{program.stem:<32} {'passed' if good else f'FAILED: {status}'}", flush=True)
    if not good:
        print(text[-4000:], flush=True)
    return good


def main():
    folder = pathlib.Path(sys.argv[1]) / "p2p" / "tests"
    programs = [folder / f"{name}.py" for name in TESTS if (folder / f"{name}.py").is_file()]
    if not programs:
        sys.exit(f"{folder} has none of {', '.join(TESTS)}")
    sys.exit(0 if all([passes(program) for program in programs]) else 1)


if __name__ == "__main__":
    main()
