# Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
"""What the doctor says: one line of knowledge each, and what to do about it where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

OK = "ok"
NOTE = "note"  # good to know; nothing is wrong
PROBLEM = "problem"  # something fails, or is slower than this machine allows

_ALWAYS = ("section", "name", "text", "level", "remedy")
_MARKS = {OK: " ", NOTE: "-", PROBLEM: "!"}


@dataclass
class Finding:
    section: str
    name: str
    text: str
    level: str = OK
    remedy: str = ""
    # Of what was measured: transfers of so many bytes, and what reached how much without the engine.
    bytes: int = 0
    gbytes_per_second: float = 0
    raw: str = ""
    raw_gbytes_per_second: float = 0


def problems(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == PROBLEM]


def as_text(findings: list[Finding]) -> str:
    """Sections with aligned lines, and what is to be done at the end."""
    lines = []
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            lines += ["", section]
        lines.append(f"{_MARKS[finding.level]} {finding.name:<28} {finding.text}")
        if finding.remedy:
            lines.append(f"  {'':<28} -> {finding.remedy}")
    wrong = problems(findings)
    summary = f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''}, marked with !" if wrong else "nothing is wrong"
    return "\n".join([*lines[1:], "", summary])


def as_json(findings: list[Finding]) -> str:
    rows = [{key: value for key, value in asdict(one).items() if key in _ALWAYS or value} for one in findings]
    return json.dumps({"healthy": not problems(findings), "findings": rows}, indent=2)
