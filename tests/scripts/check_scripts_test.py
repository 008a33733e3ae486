# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Shows that the checks of scripts/ find what they are for: each test plants a breach in a small repository."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

LICENSE = "// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0\n"


class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", folder.name], check=True)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(LICENSE + text, encoding="utf-8")

    def check(self, script):
        run = subprocess.run([sys.executable, SCRIPTS / script, self.root], capture_output=True, text=True,
                             check=False)
        return run.returncode, run.stdout + run.stderr


class Layers(Repository):
    def setUp(self):
        super().setUp()
        for header in ("include/p2p/result.h", "include/p2p/endpoint.h", "src/base/error.h", "src/wire/messages.h",
                       "src/transport/transport.h", "src/transport/tcp/tcp.h", "src/transport/tcp/frame.h",
                       "src/transport/cma/cma.h", "src/drivers/socket/socket.h", "src/drivers/cuda/stream.h",
                       "src/engine/session/session.h", "tests/support/pair.h"):
            self.write(header, "#pragma once\n")

    def assert_breach(self, path, text, expected):
        self.write(path, text)
        code, output = self.check("check_layers.py")
        self.assertEqual(code, 1, output)
        self.assertIn(path, output)
        self.assertIn(expected, output)
        self.assertEqual(len(output.splitlines()), 1, output)

    def test_what_the_table_allows_passes(self):
        self.write("src/transport/tcp/tcp.cc",
                   '#include "transport/tcp/tcp.h"\n#include <vector>\n#include "base/error.h"\n'
                   '#include "drivers/socket/socket.h"\n#include "p2p/result.h"\n#include "transport/transport.h"\n')
        self.write("src/transport/tcp/tcp_test.cc", "#include <gtest/gtest.h>\n#include \"support/pair.h\"\n")
        self.write("src/api/builtin_transports.cc", '#include "transport/tcp/tcp.h"\n#include "transport/cma/cma.h"\n')
        self.write("src/api/options.cc", 'const char* v = std::getenv("UCCL_P2P_PORT");\n')
        self.write("tools/perf/main.cc", '#include <CLI/CLI.hpp>\n#include "p2p/endpoint.h"\n')
        code, output = self.check("check_layers.py")
        self.assertEqual(code, 0, output)

    def test_sibling_transport(self):
        self.assert_breach("src/transport/cma/x.cc", '#include "transport/tcp/tcp.h"\n', "src/transport/cma/")

    def test_interface_names_no_transport(self):
        self.assert_breach("src/transport/registry.cc", '#include "transport/tcp/tcp.h"\n', "src/transport/tcp/tcp.h")

    def test_builtin_takes_the_one_header_only(self):
        self.assert_breach("src/api/builtin_transports.cc", '#include "transport/tcp/frame.h"\n', "frame.h")

    def test_transport_knows_no_engine(self):
        self.assert_breach("src/transport/tcp/x.cc", '#include "engine/session/session.h"\n', "src/engine/session/session.h")

    def test_transport_knows_no_wire(self):
        self.assert_breach("src/transport/tcp/x.cc", '#include "wire/messages.h"\n', "src/wire/messages.h")

    def test_engine_knows_no_particular_transport(self):
        self.assert_breach("src/engine/x.cc", '#include "transport/tcp/tcp.h"\n', "src/transport/tcp/tcp.h")

    def test_base_knows_values_only(self):
        self.assert_breach("src/base/x.cc", '#include "p2p/endpoint.h"\n', "include/p2p/endpoint.h")

    def test_driver_knows_no_other_driver(self):
        self.assert_breach("src/drivers/socket/x.cc", '#include "drivers/cuda/stream.h"\n', "src/drivers/cuda/stream.h")

    def test_tools_see_the_public_api_only(self):
        self.assert_breach("tools/perf/x.cc", '#include "base/error.h"\n', "src/base/error.h")

    def test_foreign_headers_stay_in_their_driver(self):
        for header in ("openssl/hmac.h", "cuda_runtime.h", "infiniband/verbs.h", "spdlog/spdlog.h", "hwloc.h",
                       "tl/expected.hpp", "gtest/gtest.h"):
            with self.subTest(header):
                self.assert_breach("src/engine/x.cc", f"#include <{header}>\n", header)

    def test_kernel_headers_are_plain(self):
        self.assert_breach("src/kernels/gather.h", "#include <cuda_runtime.h>\n", "plain C++")

    def test_environment(self):
        self.assert_breach("src/base/x.cc", 'auto* v = ::getenv("HOME");\n', "reads the environment")

    def test_unknown_folder(self):
        self.assert_breach("src/misc/x.cc", "", "no folder of the layer table")


class Sizes(Repository):
    def assert_finds(self, expected, errors):
        code, output = self.check("check_sizes.py")
        self.assertIn(expected, output)
        self.assertEqual(code, 1 if errors else 0, output)
        self.assertIn(f"{errors} over a hard limit", output)

    @staticmethod
    def body(lines):
        return "{\n" + "  call({1, 2}, \"{\", '}');  // {\n" * (lines - 2) + "}\n"

    def test_budget_kept(self):
        self.write("src/a.cc", "namespace p2p {\nclass A {\n  int f() const " + self.body(60) + "};\n"
                   + "const int kTable[] = {\n" + "  {1, [](int x) { return x; }},\n" * 100 + "};\n}\n")
        code, output = self.check("check_sizes.py")
        self.assertEqual((code, output), (0, "sizes: 1 files, 0 over a hard limit\n"))

    def test_function_over_soft_limit(self):
        self.write("src/a.cc", "namespace p2p {\n\nResult<std::vector<int>> A::f(int x) " + self.body(61) + "}\n")
        self.assert_finds("src/a.cc:4: remark: A::f has 61 lines", 0)

    def test_functions_over_hard_limit(self):
        for head in ("void f()", "A::A(int x) : x_(x), y_{x}", "template <class T>\nauto g(T t) -> decltype(t)",
                     "bool operator==(const A& a, const A& b)", "TEST(Suite, Case)", "A::~A() noexcept",
                     "Mutex& m() P2P_REQUIRES(mutex_)"):
            with self.subTest(head):
                self.write("src/a.cc", "namespace {\n" + head + " " + self.body(81) + "}\n")
                self.assert_finds("src/a.cc:3: error: ", 1)

    def test_method_inside_class_inside_namespace(self):
        self.write("src/a.h", "namespace p2p {\nstruct B {\n  int x = 0;\n  explicit B(int n) : x(n) " + self.body(90)
                   + "};\n}\n")
        self.assert_finds("B has 90 lines", 1)

    def test_class_has_the_lines_of_its_methods_in_all_files(self):
        self.write("src/a/a.h", "namespace p2p::x {\nclass A {\n  class B;\n};\n}\n")
        self.write("src/a/b.h", "namespace p2p::y {\nclass A {};\n}\n")
        for number in range(8):
            self.write(f"src/a/{number}.cc", f"namespace p2p::x {{\nstd::map<int, int> A::f{number}(int x) const "
                       + self.body(50) + "}\n")
        self.assert_finds("p2p::x::A: error: has 403 lines with its methods (soft 300, hard 400)", 1)

    def test_parameters(self):
        self.write("src/a.h", "void six(int a, int b, int c, int d, int e, std::map<int, int> f);\n")
        self.assert_finds("0 over", 0)
        self.write("src/a.h", "void seven(int a, int b, int c, int d, int e, int f, int g);\n")
        self.assert_finds("seven has 7 parameters", 1)

    def test_files(self):
        self.write("src/a.cc", "\n" * 450)
        self.assert_finds("src/a.cc:1: remark: the file has 451 lines", 0)
        self.write("src/a.cc", "\n" * 600)
        self.assert_finds("src/a.cc:1: error: the file has 601 lines", 1)
        self.write("src/a.cc", "")
        self.write("src/a.h", "\n" * 200)
        self.assert_finds("src/a.h:1: error: the file has 201 lines", 1)

    def test_python(self):
        (self.root / "a.py").write_text("def f():\n" + "    x = 1\n" * 80, encoding="utf-8")
        self.assert_finds("a.py:1: error: f has 81 lines", 1)


class Docs(Repository):
    def assert_docs(self, expected, code):
        got, output = self.check("check_docs.py")
        self.assertIn(expected, output)
        self.assertEqual(got, code, output)

    def test_true_page_passes(self):
        self.write("src/base/a.h", "#pragma once\n")
        self.write("examples/a.cc", "int main() {\n  return 0;\n}\n")
        self.write("docs/a.md", "[page](../src/base/a.h) `src/base/a.h` [web](https://example.org/x)\n"
                   "```cpp\nint main() {\n  return 0;\n```\n")
        self.assert_docs("nothing wrong", 0)

    def test_dead_link(self):
        self.write("docs/a.md", "[page](b.md)\n")
        self.assert_docs("docs/a.md:2: links to b.md", 1)

    def test_path_that_moved(self):
        self.write("docs/a.md", "See `src/base/gone.h`.\n")
        self.assert_docs("names src/base/gone.h", 1)

    def test_example_that_nobody_compiles(self):
        self.write("examples/a.cc", "int main() {}\n")
        self.write("README.md", "```cpp\nint f();\n```\n")
        self.assert_docs("README.md:2: shows C++", 1)

    def test_long_readme_of_a_folder(self):
        self.write("src/base/README.md", "x\n" * 40)
        self.assert_docs("src/base/README.md:1: has 41 lines", 1)

    def test_messages_of_the_wire(self):
        self.write("src/wire/encode.cc", 'constexpr std::array<std::string_view, 2> kNames = {"Hello",\n  "Bye"};\n')
        self.write("docs/wire.md", "| 1 | `Hello` | a u8 |\n| 2 | `Bye` | |\n")
        self.assert_docs("nothing wrong", 0)
        self.write("docs/wire.md", "| 1 | `Hello` | a u8 |\n| 2 | `Words` | |\n| 3 | `Bye` | |\n")
        self.assert_docs("docs/wire.md:3: has message 2, Words, where src/wire/encode.cc has 2, Bye", 1)
        self.assert_docs("docs/wire.md:1: has 3 messages, src/wire/encode.cc 2", 1)

    def test_license(self):
        (self.root / "a.sh").write_text("#!/bin/sh\ntrue\n", encoding="utf-8")
        self.assert_docs("a.sh:1: does not begin with the license line", 1)


if __name__ == "__main__":
    unittest.main()
