"""``lookalike verify RUN|IDX``: look for damage in everything that a run or an index has stored."""

import json
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.checksums import describe_findings
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, parse
from lookalike.cli.output import print_result
from lookalike.training.verify import verify

DESCRIPTION = """Read everything that is stored in a run or an index and compare it with its checksums. Prints a line
for each part: ok, damaged, or no checksum (written by an earlier version). The exit code is 1 if a part is damaged.
Cached features belong to no run: see lookalike cache verify."""
EXAMPLE = "lookalike verify runs/mine"


@dataclass
class VerifySettings:
    """Options of ``lookalike verify``."""

    path: Path = setting(REQUIRED, "folder of a run or an index")
    store: str | None = setting(None, "address of the Milvus server of an index, as for lookalike index")


def run(argv: list[str]) -> int:
    """Run ``lookalike verify`` with the words after its name, and return the exit code."""
    settings, as_json = parse(VerifySettings, argv, "verify", DESCRIPTION, EXAMPLE, positional=["path"], flags=JSON)
    findings = verify(settings.path, settings.store)
    damaged = sum(finding.status == "damaged" for finding in findings)
    if as_json:
        parts = [finding._asdict() for finding in findings]
        print(json.dumps({"path": str(settings.path), "damaged": damaged, "parts": parts}))
    else:
        print_result(describe_findings(findings))
    return 1 if damaged else 0
