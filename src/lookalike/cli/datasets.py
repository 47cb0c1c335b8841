"""``lookalike datasets`` and ``lookalike datasets check PATH``: list known data sets, or check a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike._util.settings import setting
from lookalike._util.suggestions import did_you_mean
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.output import print_result
from lookalike.data import DRAWN, datasets

DESCRIPTION = """Without arguments: list the data sets that are known by name, their sizes and where to get them. With
check PATH: check that a folder is complete and readable, and list its problems."""
EXAMPLE = "lookalike datasets check CUB_200_2011/"


@dataclass
class DatasetsSettings:
    """Options of ``lookalike datasets``."""

    action: str | None = setting(None, "check, or nothing for the list")
    path: Path | None = setting(None, "folder or CSV to check")
    name: str | None = setting(None, "name of the data set; null: recognised by its files")
    decode: bool = setting(True, "open every picture, to find the unreadable ones")


def run(argv: list[str]) -> int:
    """Run ``lookalike datasets`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        DatasetsSettings, argv, "datasets", DESCRIPTION, EXAMPLE, positional=["action", "path"], flags=JSON
    )
    if settings.action is None:
        _print_list(datasets.describe(), as_json=bool(flags))
        return 0
    if settings.action != "check":
        raise UsageError(f"there is no 'datasets {settings.action}'{did_you_mean(settings.action, ['check'])}")
    if settings.path is None:
        raise UsageError("missing PATH (folder or CSV to check)")
    name, colon, folder = str(settings.path).partition(":")
    if colon and datasets.lookup(name) and settings.name is None:
        settings.name, settings.path = name, Path(folder)
    if not settings.path.expanduser().exists():
        dataset = datasets.lookup(str(settings.path))
        if dataset is not None:
            raise UsageError(f"name its folder: lookalike datasets check {dataset.name}:FOLDER; nothing is downloaded")
        if str(settings.path) == DRAWN:
            raise UsageError(f"{DRAWN} are drawn when they are used: there is nothing to check")
    report = datasets.check(settings.path, settings.name, decode=settings.decode, progress=True)
    if flags:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        print_result(str(report))
    return int(not report.good)


def _print_list(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for number, dataset in enumerate(rows):
        if number > 0:
            print()
        splits = []
        for name, split in dataset["parts"].items():
            splits.append(f"{name} {split['pictures']:,} of {split['classes']:,}")
        print_result(f"{dataset['name']}: {dataset['title']}")
        print_result(f"    {dataset['pictures']:,} pictures of {dataset['classes']:,} classes; {', '.join(splits)}")
        print_result(f"    from {dataset['page']}")
        print_result(f"    files: {', '.join(dataset['files'])}")
        print_result(f"    use: lookalike train {dataset['name']}:FOLDER --out RUN")
