"""A fair table: every pooling with every loss, under the same folds, seeds and settings.

    python examples/fair_table.py glyphs --poolings average,gsp,gem --losses c2,proxy-anchor --out tables/glyphs

The data are a folder of class folders, a CSV, a known data set as name:folder, or glyphs, which are drawn. The same
command continues after an interruption. It does what `lookalike benchmark` and `lookalike report` do in a shell.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

from lookalike.cli import main as lookalike


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Compare poolings and losses on one data set.")
    parser.add_argument("data", help="data set, as for lookalike train")
    parser.add_argument("--poolings", default="average,gsp")
    parser.add_argument("--losses", default="c2,proxy-anchor")
    parser.add_argument("--protocol", default="quick", help="quick, fair, conventional, ... or a YAML file")
    parser.add_argument("--seeds", default="2", help="repeats of every combination")
    parser.add_argument("--set", default="", help='settings for all runs, for example "steps=200, size=128"')
    parser.add_argument("--out", type=Path, default=Path("tables/fair"))
    options = parser.parse_args(argv)

    # 1. Train and test every combination. Finished ones are not repeated.
    words = ["--data", options.data, "--poolings", options.poolings, "--losses", options.losses]
    words += ["--protocol", options.protocol, "--seeds", options.seeds, "--set", options.set]
    code = lookalike(["benchmark", *words, "--out", str(options.out)])
    if code != 0:
        sys.exit(code)

    # 2. Print the table: mean and standard deviation over seeds, and a paired test against average pooling.
    table = options.out / "table.csv"
    lookalike(["report", str(options.out), "--csv", str(table)])

    # 3. The CSV has one line per combination, for further work.
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    best = max(rows, key=lambda row: float(row["MAP@R"]))
    print(f"best of {len(rows)}: {best['method']}, MAP@R {float(best['MAP@R']):.2f} %")


if __name__ == "__main__":
    main()
