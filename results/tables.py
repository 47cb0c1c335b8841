"""Measured figures and the tables made of them.

    python results/tables.py                                    write the tables of every manifest into the docs
    python results/tables.py --check                            only compare; exit 1 if a page differs
    python results/tables.py --collect BENCHMARK_DIR MANIFEST   replace a manifest's rows by a benchmark's results

A manifest is ``results/NAME.yaml``: what was measured, with which command, and one row of figures per seed for every
model. Its tables stand in the docs between ``<!-- table: NAME -->`` (or ``NAME/WHICH``) and ``<!-- end of table -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(<!-- table: (?P<name>[\w.-]+)(?:/(?P<which>[\w.-]+))? -->\n).*?(<!-- end of table -->)", re.DOTALL
)
NOTHING = "\N{EN DASH}"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PERCENT = ("MAP@R", "P@1", "held-out MAP@R", "held-out P@1")
Row = dict[str, Any]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Tables of the docs from results/*.yaml")
    parser.add_argument("--check", action="store_true", help="only compare, and exit with 1 if a page differs")
    parser.add_argument("--collect", nargs=2, metavar=("BENCHMARK_DIR", "MANIFEST"), help="read a benchmark's results")
    arguments = parser.parse_args()
    if arguments.collect:
        folder, manifest = map(Path, arguments.collect)
        collect(folder, manifest)
        return 0
    differing = []
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            differing.append(page)
            if not arguments.check:
                path.write_text(filled, encoding="utf-8")
    if differing:
        print("differs from results/:" if arguments.check else "written:", ", ".join(differing))
    return int(arguments.check and bool(differing))


def fill(text: str) -> str:
    """Return a page's text with every table made again from its manifest."""

    def replace(match: re.Match[str]) -> str:
        manifest = read_manifest(match["name"])
        return f"{match[1]}\n{make_table(manifest, match['which'])}\n{match[4]}"

    return BLOCK.sub(replace, text)


def read_manifest(name: str) -> dict[str, Any]:
    """Read ``results/NAME.yaml``."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "results" / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def make_table(manifest: dict[str, Any], which: str | None = None) -> str:
    """Return a manifest's table as Markdown.

    A table has ``rows``, the key that names its rows, and either ``columns``, another key (then a cell is ``metric``),
    or ``metrics``, one column each. ``only`` keeps the rows with these values.
    """
    layout = manifest["tables"][which] if which else manifest["table"]
    rows: list[Row] = []
    for row in manifest["rows"]:
        if all(row.get(key) == value for key, value in layout.get("only", {}).items()):
            rows.append(row)
    by = layout["rows"]
    names = _distinct(row[by] for row in rows)
    lines = []
    if "columns" in layout:
        columns = _distinct(row[layout["columns"]] for row in rows)
        lines.append(_line([layout.get("corner", ""), *columns]))
        for name in names:
            cells = [name]
            for column in columns:
                matching = [row for row in rows if row[by] == name and row[layout["columns"]] == column]
                cells.append(format_cell(matching[0], layout["metric"]) if matching else NOTHING)
            lines.append(_line(cells))
    else:
        columns = layout["metrics"]
        lines.append(_line([layout.get("corner", ""), *columns]))
        for row in rows:
            lines.append(_line([row[by], *(format_cell(row, metric) for metric in columns)]))
    lines.insert(1, "|" + "---|" * (len(columns) + 1))
    return "\n".join(lines) + "\n"


def format_cell(row: Row, metric: str) -> str:
    """Return "mean ± standard deviation" over seeds; the mean alone for one seed; a dash for nothing measured."""
    values = row.get(metric)
    if values is None:
        return NOTHING
    if not isinstance(values, list):
        values = [values]
    digits = 1 if metric in PERCENT or "minutes" in metric else 0
    text = f"{mean(values):,.{digits}f}"
    if len(values) > 1 and metric in PERCENT:
        text += f" ± {stdev(values):.1f}"
    return text


def collect(folder: Path, manifest: Path) -> None:
    """Replace the benchmark rows of a manifest (all but those with ``fixed: true``) by the results in a folder."""
    from lookalike.experiments.results import read_results

    results, _ = read_results(folder)
    grouped: dict[tuple[str, str], list[Any]] = {}
    for result in results:
        if result.status == "done":
            grouped.setdefault((result.data, result.title), []).append(result)
    rows = []
    for (data, _), cells in grouped.items():
        cells.sort(key=lambda cell: (cell.fold, cell.repeat))
        first = cells[0]
        pooling = " + ".join([str(first.pooling), *(str(method) for method in first.methods)])
        row: Row = {"data": Path(data).name, "loss": first.loss.name, "pooling": pooling}
        row["MAP@R"] = [_percent(cell.test["MAP@R"]) for cell in cells]
        row["P@1"] = [_percent(cell.test["P@1"]) for cell in cells]
        row["held-out MAP@R"] = [_percent((cell.held_out or {})["MAP@R"]) for cell in cells]
        row["best step"] = [cell.best_step for cell in cells]
        rows.append(row)
    content = yaml.safe_load(manifest.read_text(encoding="utf-8"))
    rows = [row for row in rows if len(row["MAP@R"]) == len(content["seeds"])]  # others are not finished
    order = content.get("order", {})
    rows.sort(key=lambda row: [_position(row, key, names) for key, names in order.items()])
    content["rows"] = [row for row in content.get("rows") or [] if row.get("fixed")] + rows
    header = manifest.read_text(encoding="utf-8").partition("\nrows:")[0].rstrip()
    lines = [header, "rows:"]
    for row in content["rows"]:
        lines.append("  - " + yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=1000).strip())
    manifest.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _position(row: Row, key: str, names: list[str]) -> int:
    return names.index(row[key]) if row[key] in names else len(names)


def _percent(fraction: float) -> float:
    return round(100 * fraction, 2)


def _distinct(values: Any) -> list[str]:
    return list(dict.fromkeys(values))


def _line(cells: list[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
