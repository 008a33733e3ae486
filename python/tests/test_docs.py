# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""The examples and commands of the pages, as printed. A page that gains one needs a line here."""

import ast
import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import types
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import uccl.directory
import uccl.weights
from uccl import aio, files, p2p

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent
SECONDS = 240

pytestmark = pytest.mark.timeout(SECONDS + 20)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def blocks(*languages):
    """(page, text) of every block."""
    return [(page.name, text) for page in PAGES for language, text in BLOCK.findall(page.read_text()) if language in languages]


# Examples in Python: by their first line the names that they need, and what is looked at afterwards.


def joined(array, **options):
    """Two connected endpoints of this process, with memory of each registered and described."""
    here, there = p2p.Endpoint(0, 1, **options), p2p.Endpoint(1, 1, **options)
    address, port, gpu = p2p.Endpoint.parse_metadata(there.get_metadata())
    ok, conn = here.connect(address, gpu, port)
    assert ok, p2p.last_error()
    ok, _, _, theirs = there.accept(timeout=20)
    assert ok, p2p.last_error()
    mine, far = here.reg(array)[1], np.zeros_like(array)
    region = there.reg(far)[1]
    return types.SimpleNamespace(here=here, there=there, conn=conn, theirs=theirs, mine=mine, far=far, region=region,
                                 blob=there.advertise(region, far)[1])  # fmt: skip


class Ends:
    """Stands for the endpoint of an example that shows both sides: sends here, receives there."""

    def __init__(self, both):
        self._both = both

    def __getattr__(self, name):
        return getattr(self._both.here, name)

    def recv(self, conn, region, pointer, size):
        return self._both.there.recv(self._both.theirs, self._both.region, self._both.far.ctypes.data, size)

    def send(self, *arguments):
        # Each waits for the other.
        sending = threading.Thread(target=self._both.here.send, args=arguments, daemon=True)
        sending.start()
        return True

    def advertise(self, conn, region, pointer, size):
        return self._both.there.advertise(self._both.theirs, self._both.region, self._both.far.ctypes.data, size)

    def accept(self):
        return self._both.there.accept(timeout=20)


def common(array, **options):
    both = joined(array, **options)
    pointer = array.ctypes.data
    names = {
        "p2p": p2p, "np": np, "ep": both.here, "conn_id": both.conn, "mr_id": both.mine, "ptr": pointer, "size": array.nbytes,
        "tensor": array, "array": array, "blob": both.blob, "my_mr_id": both.mine, "my_ptr": pointer,
    }  # fmt: skip
    return both, names


def run_example(text, names):
    code = compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)  # noqa: S307 - our own pages
    if asyncio.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, 40))
    return names


def first_endpoint(text, _):
    with run_example(text, {})["ep"] as endpoint:
        assert endpoint.get_metadata()


def both_sides(text, _):
    both, names = common(np.zeros(64, np.uint8))
    meanwhile = threading.Thread(target=both.here.connect, args=p2p_address(both.there), daemon=True)
    meanwhile.start()  # whom the accept of the first side takes
    run_example(text, {**names, "ep": Ends(both), "metadata_of_peer": both.there.get_metadata()})
    assert names["ep"].routes(both.conn)


def p2p_address(endpoint):
    address, port, gpu = p2p.Endpoint.parse_metadata(endpoint.get_metadata())
    return address, gpu, port


def by_address(text, _):
    torch = pytest.importorskip("torch")
    tensor = torch.arange(64, dtype=torch.uint8)
    both, names = common(tensor.numpy())
    assert run_example(text, {**names, "ep": Ends(both), "tensor": tensor})["ok"]
    assert (both.far == tensor.numpy()).all()


def with_keys(text, tmp_path):
    (tmp_path / "p2p.keys").write_text("decode-1:0123456789abcdef0123456789abcdef\n")
    (tmp_path / "p2p.keys").chmod(0o600)
    array = np.zeros(64, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        names = run_example(text, {"p2p": p2p, "ptr": array.ctypes.data, "size": array.nbytes})
    assert names["ok"], p2p.last_error()
    names["ep"].close()


def tensors(text, _):
    both, names = common(np.arange(64, dtype=np.uint8))
    receiving = threading.Thread(target=both.there.recv, args=(both.theirs, np.zeros(64, np.uint8)), daemon=True)
    receiving.start()
    assert run_example(text, names)["ok"], p2p.last_error()
    assert (both.far == names["array"]).all()


def with_gaps(text, _):
    torch = pytest.importorskip("torch")
    both, names = common(np.zeros(64, np.uint8))
    cache, grid = torch.arange(128, dtype=torch.uint8).reshape(8, 16), torch.zeros(8, 8, dtype=torch.uint8)
    assert run_example(text, {**names, "cache": cache, "first": 2, "last": 10, "grid": grid})["ok"], p2p.last_error()
    assert (both.far.reshape(8, 8) == cache[:, 2:10].numpy()).all()
    assert (grid.t() == cache[:, 2:10]).all()


def behind_a_stream(text, _):
    _, names = common(np.zeros(64, np.uint8))
    current = types.SimpleNamespace(current_stream=lambda: None)  # no stream is known where there is no GPU
    names = run_example(text, {**names, "torch": types.SimpleNamespace(cuda=current)})
    assert names["ok"] and names["ep"].wait(names["id"]) == 64


def by_class(text, _):
    both, names = common(np.arange(64, dtype=np.uint8))
    names = run_example(text, names)
    assert names["ok"] and names["ep"].wait(names["id"]) == 64
    assert (both.far == names["array"]).all()


def one_sided(text, _):
    both, names = common(np.arange(64, dtype=np.uint8))
    assert run_example(text, {**names, "ep": Ends(both)})["ok"], p2p.last_error()
    assert (both.far == names["array"]).all()


def coroutines(text, _):
    array = np.arange(64, dtype=np.uint8)
    with p2p.Endpoint(1, 1) as there:
        far = np.zeros_like(array)
        blob = there.advertise(there.reg(far)[1], far)[1]
        address, gpu, port = p2p_address(there)

        class Prepared(aio.Endpoint):
            """Whose first region is the example's."""

            def __init__(self):
                super().__init__()
                assert self.reg(array) == 1

        names = {"aio": types.SimpleNamespace(Endpoint=Prepared), "address": address, "gpu": gpu, "port": port, "region": 1,
                 "pointer": array.ctypes.data, "size": 64, "blob": blob}  # fmt: skip
        run_example(text, names)
        assert (far == array).all()


def ranks(text, _):
    both, names = common(np.arange(64, dtype=np.uint8))
    regions = both.there.register_memory([both.far])
    told = [None, (both.there.get_metadata(), both.there.get_serialized_descs(regions))]
    into = np.ones(64, np.uint8)
    stand_in = types.SimpleNamespace(all_gather_object=lambda _, own: told.__setitem__(0, own))
    names = run_example(text, {**names, "dist": stand_in, "told": told, "peer": 1, "endpoint": both.here, "regions": [],
                               "local": both.here.register_memory([into])})  # fmt: skip
    assert names["ok"] and both.here.wait(names["transfer"]) == 64 and (into == both.far).all()


def with_ray(text, _):
    compile(text, "page", "exec")
    ray = pytest.importorskip("ray")
    names = run_example(text, {"ray": ray, "torch": pytest.importorskip("torch")})
    assert names["Source"]


def with_vllm(text, _):
    compile(text, "page", "exec")
    assert "UcclTrainerInitInfo(rank=0" in (ROOT / "tests/stacks/vllm/weights_server.py").read_text()


def weights(text, _):
    model = types.SimpleNamespace(
        state_dict=lambda: {"weight": np.full((1024, 512), 3, np.float32), "norm": np.full(8, 4, np.float32)}
    )
    part, norm = np.zeros((512, 512), np.float32), np.zeros(8, np.float32)
    names = run_example(text, {"model": model, "weight": part, "norm": norm})
    names["subscriber"].close()
    names["publisher"].close()
    assert (part == 3).all()
    assert (norm == 4).all()


def weights_by_directory(text, tmp_path):
    text = text.replace("tcpstore://10.0.0.5:29500", f"folder://{tmp_path}")
    made = {"directory": uccl.directory, "Publisher": uccl.weights.Publisher, "Subscriber": uccl.weights.Subscriber}
    names = run_example(text, {**made, "tensors": {"w": np.zeros(8, np.uint8)}})
    with names["names"], names["publisher"] as publisher, names["subscriber"] as subscriber:
        publisher.publish(1, {"w": np.ones(8, np.uint8)})
        assert subscriber.wait_version(timeout=20) == 1


def weights_of_ranks(text, _):
    of_rank, of_server = text.split("\n\n")
    held, tensors = {"w": np.ones(8, np.uint8)}, {"w": np.zeros(8, np.uint8)}
    names = run_example(of_rank, {"Publisher": uccl.weights.Publisher, "held": held, "rank": 0, "count": 1})
    server = {"RanksSubscriber": uccl.weights.RanksSubscriber, "parts": [names["part"]], "tensors": tensors}
    run_example(of_server, server)["subscriber"].close()
    names["publisher"].close()
    assert (tensors["w"] == 1).all()


def allocated(text, _):
    _, names = common(np.zeros(64, np.uint8))
    names = run_example(text, {**names, "nbytes": 5000})
    assert names["ok"], p2p.last_error()
    assert memoryview(names["buffer"]).nbytes == 5000


def strides(text, _):
    page_bytes = 64 * 4608
    both, names = common((np.arange(61 * page_bytes) % 251).astype(np.uint8))
    rows = np.lib.stride_tricks.as_strided
    shape = {"shape": (61, 64, 576), "strides": (page_bytes, 4608, 1)}
    packed = np.zeros(61 * 64 * 576, np.uint8)
    names = run_example(text, {**names, "tensor": packed, "page_bytes": page_bytes})
    assert names["ok"], p2p.last_error()
    assert (both.far[: len(packed)] == rows(names["array"], **shape).ravel()).all()
    assert (packed == rows(both.far, **shape).ravel()).all()


EXAMPLES = {
    "from uccl import p2p": first_endpoint,
    "# one process": both_sides,
    "ok, mr_id = ep.reg(tensor.data_ptr(), tensor.numel() * tensor.element_size())": by_address,
    'ep = p2p.Endpoint(key_file="p2p.keys")': with_keys,
    "ok, mr_id = ep.reg(tensor)": tensors,
    "ok = ep.write(conn_id, cache[:, first:last], blob)": with_gaps,
    "ok, id = ep.write_async(conn_id, mr_id, ptr, size, blob, stream=torch.cuda.current_stream())": behind_a_stream,
    'ep.write(conn_id, mr_id, ptr, size, blob, priority="high")': by_class,
    "ok, blob = ep.advertise(conn_id, mr_id, ptr, size)": one_sided,
    "async with aio.Endpoint() as ep:": coroutines,
    "dist.all_gather_object(told, (endpoint.get_metadata(), endpoint.get_serialized_descs(regions)))": ranks,
    "from uccl import ray as uccl_ray": with_ray,
    "from uccl.weights.vllm import UcclTrainerInitInfo": with_vllm,
    "from uccl.weights import Publisher, Shard, Subscriber": weights,
    'names = directory.use("tcpstore://10.0.0.5:29500")': weights_by_directory,
    "publisher = Publisher()": weights_of_ranks,
    "buffer = ep.allocate(nbytes)": allocated,
    "head = p2p.Strides(block=576, count=64, stride=4608, rows=61, row_stride=page_bytes)": strides,
}


def first_line(text):
    """Without a remark behind it."""
    return text.splitlines()[0].split("  #")[0].rstrip()


@pytest.mark.parametrize("text", [text for _, text in blocks("python")], ids=first_line)
def test_examples(text, tmp_path):
    EXAMPLES[first_line(text)](text, tmp_path)


# Commands. `held`: too large for this test, and run by another that names it.


def commands(text):
    """The commands of a block, without remarks."""
    text = re.sub(r"\s+#.*$", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def shell(text, folder, **more):
    done = subprocess.run(
        ["bash", "-euc", text], cwd=folder, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **more},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def make(command, _):
    code, said = shell(f"make -n {command.split(maxsplit=1)[1]}", ROOT)
    assert code == 0, said


def pip_install(command, _):
    """How this package came here; its extras are there."""
    project = (ROOT / "pyproject.toml").read_text()
    for word in shlex.split(command.split("&&")[0])[2:]:
        name, _, extra = word.partition("[")
        assert name in (".", "nixl") or f'name = "{name}"' in project
        assert not extra or f"\n{extra.rstrip(']')} = [" in project


def held(path, word):
    def check(command, _):
        assert word in command and word in (ROOT / path).read_text()

    return check


def key_file(command, tmp_path):
    code, said = shell(command, tmp_path)
    assert code == 0, said
    p2p.Endpoint(0, 1, key_file=str(tmp_path / "p2p.keys")).close()


def nixl(command, _):
    """Without a NIXL it says so."""
    if find_spec("nixl") is None:
        code, said = shell(command, ROOT)
        assert code == 1 and "no NIXL is installed" in said
    else:
        code, said = shell(f"{command} --help", ROOT)  # nixl/tests runs them where NIXL is
        assert code == 0, said


def mooncake(command, tmp_path):
    code, said = shell(f"{command} --dir {tmp_path}", ROOT)
    assert code == 0 and f"{tmp_path}/mooncake" in said, said


def torchrun(command, tmp_path):
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    short = " --sizes=1K --iters=2"
    if "--nnodes=2" in command:
        command = command.replace("torchrun", f"torchrun --master_port={port}").replace("ADDRESS", "127.0.0.1")
        short = f"{short} & {command.replace('--node-rank=0', '--node-rank=1')}{short}; wait $!"
    code, said = shell(command + short, ROOT / "python/benchmarks", OMP_NUM_THREADS="1")
    assert code == 0 and "GB/s" in said, said


COMMANDS = {
    r"make \w[\w-]*( PREFIX=\S+)?": make,
    r"pip install nixl": pip_install,
    r"pip install \S+( nixl && python -m uccl.nixl install| && python -m uccl.mooncake install)?": pip_install,
    r"python -m uccl\.nixl (install( --as UCCL)?|status|uninstall)": nixl,
    r"python -m uccl\.mooncake (install|status|uninstall)": mooncake,
    r"scripts/test_python\.sh": held("scripts/test.sh", "scripts/test_python.sh"),
    r"c\+\+ .*pkg-config.*": held("tests/install/use_installed.sh", "pkg-config --cflags --libs"),
    r"VLLM_SERVER_DEV_MODE=1 vllm serve MODEL .*": held("tests/stacks/vllm/weights_server.py", "--weight-transfer-config"),
    r"vllm serve MODEL .*MooncakeConnector.*": held("tests/stacks/vllm/mooncake_connector.py", "MooncakeConnector"),
    r"vllm serve MODEL .*": held("tests/stacks/vllm/run.py", "NixlConnector"),
    r"python -m sglang\.launch_server .*": held("tests/stacks/sglang/disaggregation.py", "mooncake"),
    r"python -m verl\.trainer\..*": held("tests/stacks/verl/chain.py", "mooncake"),
    r"mkdir plugins && .* --dir plugins": held("scripts/stacks.sh", "install --as UCX --dir"),
    r"export NIXL_PLUGIN_DIR=.*": held("scripts/stacks.sh", "NIXL_PLUGIN_DIR="),
    r"\(umask 077 && .*\)": key_file,
    r"torchrun .*": torchrun,
}


def single_commands():
    return [command for _, text in blocks("bash", "sh") if "SOFTNET" not in text for command in commands(text)]


@pytest.mark.parametrize("command", single_commands())
def test_commands(command, tmp_path):
    (check,) = [check for pattern, check in COMMANDS.items() if re.fullmatch(pattern, command)][:1]
    check(command, tmp_path)


def test_the_plugin_on_one_machine(tmp_path):
    ((_, text),) = [one for one in blocks("bash") if "SOFTNET" in one[1]]
    plugin = tmp_path / "build/release/softnet/libnccl-net-soft.so"
    plugin.parent.mkdir(parents=True)
    plugin.symlink_to(files.softnet())
    code, said = shell(f"{text}wait $!", tmp_path)
    assert code == 0, said


def test_blocks_have_their_language():
    """What is not run is output, a figure, or of another language that other tests build."""
    for page, text in blocks(""):
        for command in commands(text):
            assert not any(re.fullmatch(pattern, command) for pattern in COMMANDS), page


# What stands in the lines of the text: programs and their options.

PROGRAMS = {
    "p2p-perf": [str(files.program("p2p-perf"))],
    "tcpx": [str(files.program("tcpx"))],
    "p2p-doctor": [sys.executable, "-m", "uccl.doctor"],
    "p2p-top": [sys.executable, "-m", "uccl.top"],
}
SUBCOMMANDS = {"p2p-perf": 1, "tcpx": 2}


def named():
    """(page, words) of every command that a page names with options or a subcommand."""
    for page in PAGES:
        for text in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", BLOCK.sub("", page.read_text())):
            words = text.split()
            if len(words) > 1 and (words[0] in PROGRAMS or re.fullmatch(r"benchmark_\w+\.py|compare_perf\.py", words[0])):
                yield page.name, words


@cache
def help_of(*words):
    program = PROGRAMS.get(words[0]) or [sys.executable, str(ROOT / "python/benchmarks" / words[0])]
    if words[:2] == ("p2p-perf", "report"):
        program, words = [sys.executable, "-m", "uccl.report"], words[:1]
    done = subprocess.run([*program, *words[1:], "--help"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@pytest.mark.parametrize(("page", "words"), sorted({(page, tuple(words)) for page, words in named()}), ids=lambda one: str(one)[:60])
def test_options_that_the_pages_name(page, words):
    if words[0].startswith("benchmark") and words[0] != "benchmark_mooncake.py":
        pytest.importorskip("torch")
    subcommands = [word for word in words[1 : SUBCOMMANDS.get(words[0], 0) + 1] if not word.startswith("-")]
    options = [word.split("=")[0] for word in words if word.startswith("-") and word != "-o"]
    if options:
        asked = 1 if words[1:2] == ("discover",) else SUBCOMMANDS.get(words[0], 0)
        assert len(subcommands) == asked, f"{page}: `{' '.join(words)}` lacks its subcommand"
    text = help_of(words[0], *subcommands)
    for option in options:
        assert re.search(rf"(^|[\s,\[]){re.escape(option)}\b", text), f"{page}: {option} is no option of {words[:3]}"


def test_the_tour_makes_a_page(tmp_path):
    """`p2p-perf local --json tour.jsonl`, and `p2p-perf report FILES -o report.html` of it."""
    code, said = shell("p2p-perf local --json tour.jsonl && p2p-perf report tour.jsonl -o report.html", tmp_path)
    assert code == 0, said
    page = (tmp_path / "report.html").read_text()
    assert "Best path" in page and socket.gethostname() in page and "% of the machine" in page.replace("</b>", "")


def test_the_pages_of_this_tree_are_meant():
    assert uccl.__file__ and len(PAGES) > 20 and blocks("python") and list(named())
