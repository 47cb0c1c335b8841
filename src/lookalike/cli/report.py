"""``lookalike report DIR``"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse

DESCRIPTION = """Tables of what lookalike benchmark left in a folder: mean and spread, paired tests against a baseline,
costs, what failed, and the published numbers beside. Prints the tables and writes a page, DIR/report.html."""
PRINTED = Path("-")
EXAMPLE = 'lookalike report tables/glyphs --csv glyphs.csv --baseline "c2 + average"'


@dataclass
class ReportSettings:
    dir: Path | None = setting(None, "the folder that lookalike benchmark --out left its results in")
    html: Path | None = setting(None, "where the page goes; null: DIR/report.html, none with --json")
    csv: Path | None = setting(None, "also write every row to this file, for a spreadsheet; -: print it")
    latex: Path | None = setting(None, "also write the tables to this file, for LaTeX with booktabs; -: print it")
    metric: str = setting("MAP@R", "the figure that rows are compared by: MAP@R, P@1, P@R, R@1, ...")
    baseline: str | None = setting(
        None, "title of the row that others are compared with; null: the same loss with average pooling"
    )
    joined: bool = setting(True, "also measure the vectors of all folds side by side, where they were kept")


def run(argv: list[str]) -> int:
    settings, flags = parse(
        ReportSettings,
        argv,
        prog="lookalike report",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["dir"],
        flags=JSON,
    )
    if settings.dir is None:
        raise UsageError("say which folder: lookalike report DIR")
    from lookalike._util.files import require_writable, write_text
    from lookalike._util.progress import Display
    from lookalike._util.signals import StopRequest
    from lookalike.report.benchmark import build_report
    from lookalike.report.benchmark_json import as_dict
    from lookalike.report.benchmark_page import as_csv, as_html, as_latex, as_text

    page = settings.html or (None if flags else settings.dir / "report.html")
    printed = [f"--{name}" for name in ("html", "csv", "latex") if getattr(settings, name) == PRINTED] + sorted(flags)
    if len(printed) > 1:
        raise UsageError(f"only one can be printed, got {' and '.join(printed)}: name a file for the others")
    if settings.dir.is_dir():
        for path in (page, settings.csv, settings.latex):
            if path is not None and path != PRINTED:
                _require_file(path)
                require_writable(path)
    with StopRequest().listening() as stop:
        display = Display(stop)
        report = build_report(
            settings.dir,
            settings.metric,
            settings.baseline,
            join=settings.joined,
            bar=lambda count: display.bar(count, "joining models", unit=" combinations"),
        )
    written = []
    for path, content in (
        (page, as_html),
        (settings.csv, as_csv),
        (settings.latex, as_latex),
    ):
        if path == PRINTED:
            print(content(report), end="")
        elif path is not None:
            write_text(path, content(report))
            written.append(str(path))
    if flags:
        print(json.dumps(as_dict(report)))
    elif not printed:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(as_text(report, colour))
    if written:
        print(f"{'' if printed else chr(10)}written: {', '.join(written)}", file=sys.stderr if printed else sys.stdout)
    return 0


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file in it")
