# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""Compares docs/architecture.md with the code: the layers, and the files of one write."""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers  # noqa: E402

PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def table(heading):
    """The rows of the first table below a heading, each a list of its cells."""
    section = PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


class Layers(unittest.TestCase):
    def documented(self):
        for folders, _, includes in table("Layers"):
            told = {name.rstrip("/") for name in quoted(includes)}
            if "value headers" in includes:
                told.add("value headers")
            for folder in quoted(folders):
                yield folder, told

    def held(self, key):
        """What check_layers.py lets a folder include, in the words of the page."""
        for rule in check_layers.LAYERS[key]:
            if rule in (key, "{own}"):
                continue
            if rule in check_layers.VALUES:
                yield "value headers"
            else:
                yield rule.removeprefix("src/").rstrip("/")

    def test_the_page_says_what_the_check_holds(self):
        for folder, told in self.documented():
            with self.subTest(folder=folder):
                self.assertIn(folder, check_layers.LAYERS)
                self.assertEqual(told, set(self.held(folder)))

    def test_the_page_leaves_no_folder_out(self):
        inside = ("tests/", "fuzz/", "bench/micro/")
        shipped = {key for key in check_layers.LAYERS if not key.startswith(inside)}
        self.assertEqual({folder for folder, _ in self.documented()}, shipped)


class OneWrite(unittest.TestCase):
    def setUp(self):
        self.rows = [(quoted(file)[0], quoted(entry)[0]) for file, entry, _ in table("One write over `tcp`")]
        self.texts = [(ROOT / file).read_text(encoding="utf-8") for file, _ in self.rows]

    def defines(self, text, function):
        """A definition starts its line with the result type; a call does not."""
        return re.search(rf"^[\w:<>&*, ]+[ &*]{re.escape(function)}\(", text, re.MULTILINE)

    def calls(self, text, function):
        name = function.split("::")[-1]
        return re.search(rf"(->|\.|::|[=(!] ?|return ){re.escape(name)}\(", text)

    def test_each_file_has_its_entry_and_an_earlier_one_calls_it(self):
        for number, (file, function) in enumerate(self.rows):
            with self.subTest(file=file, function=function):
                self.assertTrue(self.defines(self.texts[number], function), "is not defined there")
                if number != 0:
                    earlier = self.texts[:number]
                    self.assertTrue(any(self.calls(text, function) for text in earlier), "nobody calls it")

    def test_it_goes_from_write_to_sendmsg(self):
        self.assertEqual(self.rows[0][1], "Connection::write")
        self.assertRegex(self.texts[-1], r"::sendmsg\(")


if __name__ == "__main__":
    unittest.main()
