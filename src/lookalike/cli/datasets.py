"""``lookalike datasets`` and ``lookalike datasets check PATH``"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike._util.settings import setting
from lookalike._util.suggestions import did_you_mean
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.data import DRAWN
from lookalike.data import datasets as benchmarks

DESCRIPTION = """Without a word more: the benchmarks that are known by name, their sizes, and where to get them. With
check PATH: whether the folder holds what it should, and what is wrong."""
EXAMPLE = "lookalike datasets check CUB_200_2011/"


@dataclass
class DatasetsSettings:
    action: str | None = setting(None, "check, or nothing for the list")
    path: Path | None = setting(None, "the folder or CSV to check")
    name: str | None = setting(None, "the benchmark it is meant to be; null: by its files")
    decode: bool = setting(True, "open every picture, to find the unreadable ones")


def run(argv: list[str]) -> int:
    settings, flags = parse(
        DatasetsSettings,
        argv,
        prog="lookalike datasets",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["action", "path"],
        flags=JSON,
    )
    if settings.action is None:
        rows = benchmarks.describe()
        print(json.dumps(rows, indent=2) if flags else "\n\n".join(_entry(row) for row in rows))
        return 0
    if settings.action != "check":
        raise UsageError(f"there is no 'datasets {settings.action}'{did_you_mean(settings.action, ['check'])}")
    if settings.path is None:
        raise UsageError("say what to check: lookalike datasets check PATH")
    name, colon, folder = str(settings.path).partition(":")
    if colon and benchmarks.lookup(name) and settings.name is None:
        settings.name, settings.path = name, Path(folder)
    if not settings.path.expanduser().exists() and (known := benchmarks.lookup(str(settings.path))):
        raise UsageError(f"say where it is: lookalike datasets check {known.name}:FOLDER; nothing is downloaded")
    if str(settings.path) == DRAWN and not settings.path.exists():
        raise UsageError(f"{DRAWN} are drawn on the spot: there is nothing to check")
    report = benchmarks.check(settings.path, settings.name, decode=settings.decode, progress=True)
    print(json.dumps(report.as_dict(), indent=2) if flags else str(report))
    return 0 if report.good else 1


def _entry(row: dict[str, Any]) -> str:
    parts = [f"{name} {part['pictures']:,} of {part['classes']:,}" for name, part in row["parts"].items()]
    return "\n".join(
        [
            f"{row['name']}: {row['title']}",
            f"    {row['pictures']:,} pictures of {row['classes']:,} classes; {', '.join(parts)}",
            f"    from {row['page']}",
            f"    files: {', '.join(row['files'])}",
            f"    use: lookalike train {row['name']}:FOLDER --out RUN",
        ]
    )
