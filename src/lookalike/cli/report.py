"""``lookalike report DIR``: make tables from the results of a benchmark, or the page of a run."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.output import print_result, print_status, require_new_file

DESCRIPTION = """Make tables from the results of lookalike benchmark: mean and standard deviation, paired tests against
a baseline, costs, failures and published numbers. Prints the tables and writes a page, DIR/report.html. If DIR is the
folder of a run: write its page DIR/run.html again."""
STDOUT = Path("-")
EXAMPLE = 'lookalike report tables/glyphs --csv glyphs.csv --baseline "c2 + average"'


@dataclass
class ReportSettings:
    """Options of ``lookalike report``."""

    dir: Path = setting(REQUIRED, "folder with results, the --out of lookalike benchmark; or of lookalike train")
    html: Path | None = setting(None, "file for the page; null: DIR/report.html, or none with --json; DIR/run.html")
    csv: Path | None = setting(None, "also write all rows as CSV to this file; - prints them")
    latex: Path | None = setting(None, "also write the tables as LaTeX (booktabs) to this file; - prints them")
    metric: str = setting("MAP@R", "metric to compare rows by: MAP@R, P@1, P@R, R@1, ...")
    baseline: str | None = setting(
        None, "title of the row to compare the others with; null: the same loss with average pooling"
    )
    joined: bool = setting(True, "also measure the concatenated vectors of all folds, if they were saved")


def run(argv: list[str]) -> int:
    """Run ``lookalike report`` with the words after its name, and return the exit code."""
    settings, flags = parse(ReportSettings, argv, "report", DESCRIPTION, EXAMPLE, positional=["dir"], flags=JSON)
    if (settings.dir / "settings.yaml").exists():
        return _report_run(settings, flags)
    from lookalike._util.files import write_text
    from lookalike._util.progress import Display
    from lookalike._util.signals import StopRequest
    from lookalike.report.benchmark import build_report
    from lookalike.report.benchmark_json import as_dict
    from lookalike.report.benchmark_page import as_csv, as_html, as_latex, as_text

    outputs = _choose_outputs(settings, flags)
    printed = [option for option, path in outputs.items() if path == STDOUT] + sorted(flags)
    if len(printed) > 1:
        raise UsageError(f"only one output can be printed, got {' and '.join(printed)}: name a file for the others")
    with StopRequest().listening() as stop:
        display = Display(stop)
        report = build_report(
            settings.dir,
            settings.metric,
            settings.baseline,
            join=settings.joined,
            bar=lambda count: display.bar(count, "joining models", unit=" combinations"),
        )
    renderers = {"--html": as_html, "--csv": as_csv, "--latex": as_latex}
    written = []
    for option, path in outputs.items():
        content = renderers[option](report)
        if path == STDOUT:
            print(content, end="")
        else:
            write_text(path, content)
            written.append(str(path))
    if flags:
        print(json.dumps(as_dict(report)))
    elif not printed:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(as_text(report, colour))
        print_result(f"\nwrote {', '.join(written)}")
    if written and printed:
        print_status(f"wrote {', '.join(written)}")
    return 0


def _report_run(settings: ReportSettings, flags: set[str]) -> int:
    """Write the page of a run."""
    from lookalike.report.run_page import FILE, write_run_page
    from lookalike.training.checkpoint import RunFolder

    for option, is_given in {
        "--csv": settings.csv is not None,
        "--latex": settings.latex is not None,
        "--baseline": settings.baseline is not None,
        "--metric": settings.metric != ReportSettings.metric,
    }.items():
        if is_given:
            raise UsageError(f"{option} is for the results of a benchmark; {settings.dir} is the folder of a run")
    path = settings.html or settings.dir / FILE
    require_new_file(path, "--html", overwrite=True)
    sentence = write_run_page(settings.dir, path, say=print_status)
    if flags:
        figures = RunFolder(settings.dir).read_json("figures.json")
        print(json.dumps({**figures, "sentence": sentence, "page": str(path)}))
        return 0
    if sentence:
        print_result(sentence)
    print_result(f"wrote {path}")
    return 0


def _choose_outputs(settings: ReportSettings, flags: set[str]) -> dict[str, Path]:
    """Files to write by option; raises if one cannot be written."""
    outputs = {}
    if settings.html is not None:
        outputs["--html"] = settings.html
    elif not flags:
        outputs["--html"] = settings.dir / "report.html"
    if settings.csv is not None:
        outputs["--csv"] = settings.csv
    if settings.latex is not None:
        outputs["--latex"] = settings.latex
    if settings.dir.is_dir():  # otherwise the missing folder is reported
        for option, path in outputs.items():
            if path != STDOUT:
                require_new_file(path, option, overwrite=True)
    return outputs
