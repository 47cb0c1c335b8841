"""What P(same | distance) is worth on classes and data that the calibration has not seen.

    lookalike embed runs/mine held_out/ --out held_out.npy    # labelled pictures of classes that were not trained on
    lookalike embed runs/mine other/ --out other.npy          # labelled pictures of other classes
    python perf/calibration.py held_out.npy other.npy [MORE.npy ...]

The calibration is fitted on the first file and measured on each of the others, and on a drawn half and an eighth of
their classes. "distance" is a fit over the distance itself. "relative" is a fit over its multiple of the distance to
the 50th neighbour, as lookalike does it without labels. "sizes" also knows how large the classes are, as lookalike does
it for a collection with labels. "Nothing said" is how often the test at 5 % says that nothing looks the
same, by the calibration alone and with the collection's own pictures: wrongly, where the class of the query is there,
and rightly, where it is taken out. Up to 300 pictures of the collection take part in the test and are no queries.
Figures are in percent.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.index.calibrating import ERROR_RATE, OWN_SAMPLE
from lookalike.retrieval.calibration import (
    Calibration,
    Neighbourhoods,
    conformal_p_value,
    find_neighbourhoods,
    fit,
    measure,
    open_set_metrics,
)

PARTS = (1, 2, 8)
SEED = 0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure calibrations on vectors of lookalike embed.")
    parser.add_argument("files", nargs="+", type=Path, help="x.npy with x.csv beside it; the first one is fitted on")
    first, *others = parser.parse_args(argv).files
    held_out = find_neighbourhoods(*read_vectors(first))
    calibration = fit(held_out, "", unseen=True)
    print(f"fitted on {len(held_out.labels):,} queries of {len(np.unique(held_out.labels)):,} classes of {first.stem}")
    print(
        f"{'':24}{'pictures':>9} {'P@1':>5} {'AUROC':>6}{'error: distance':>17}{'relative':>10}{'sizes':>7}"
        f"{'wrongly: alone':>16}{'both':>6}{'rightly: alone':>16}{'both':>6}"
    )
    for file in others:
        vectors, labels = read_vectors(file)
        for part in PARTS:
            chosen = part_of_classes(labels, part)
            found = find_neighbourhoods(vectors[chosen], labels[chosen])
            unlabelled = found._replace(same_size=calibration.same_size)
            sizes = measure(calibration, found)["calibration_error"]
            relative = measure(calibration, unlabelled)["calibration_error"]
            by_distance = replace(fit(absolute(held_out), "", unseen=True), rank=0)
            distance = measure(by_distance, unlabelled)["calibration_error"]
            errors = f"{100 * distance:>17.1f}{100 * relative:>10.1f}{100 * sizes:>7.1f}"
            auroc = 100 * open_set_metrics(found)["AUROC"]
            right = 100 * found.same[found.present, 0].mean()
            wrongly, rightly = nothing_said(calibration, found)
            said = f"{wrongly[0]:>16.1f}{wrongly[1]:>6.1f}{rightly[0]:>16.1f}{rightly[1]:>6.1f}"
            name = f"{file.stem}, {len(np.unique(labels[chosen])):,} classes"
            print(f"{name:24}{chosen.sum():>9,} {right:>5.1f} {auroc:>6.1f}{errors}{said}")


def nothing_said(calibration: Calibration, found: Neighbourhoods) -> tuple[list[float], list[float]]:
    """How often the test says "nothing", alone and with the collection: where the class is there, and where not."""
    order = np.random.default_rng(SEED).permutation(len(found.labels))
    count = min(OWN_SAMPLE, len(order) // 2)
    own = np.sort(found.distances[order[:count], 0])
    queries = np.sort(order[count:])
    queries = queries[found.present[queries]]
    shares = []
    for nearest in (found.distances[queries, 0], found.nearest_other[queries]):
        alone = np.array([calibration.p_value(distance) <= ERROR_RATE for distance in nearest])
        here = np.array([conformal_p_value(own, distance) <= ERROR_RATE for distance in nearest])
        shares.append([100 * float(alone.mean()), 100 * float((alone & here).mean())])
    return shares[0], shares[1]


def absolute(found: Neighbourhoods) -> Neighbourhoods:
    """The same neighbourhoods, with distances that are compared with nothing."""
    return found._replace(references=np.ones(len(found.labels)))


def part_of_classes(labels: NDArray[Any], part: int) -> NDArray[np.bool_]:
    """The pictures (n,) of a drawn part of the classes."""
    classes = np.unique(labels)
    drawn = np.random.default_rng(SEED).permutation(classes)[: max(2, len(classes) // part)]
    return np.isin(labels, drawn)


def read_vectors(file: Path) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Vectors and labels that lookalike embed has written."""
    with file.with_suffix(".csv").open(newline="", encoding="utf-8") as text:
        labels = [row["label"] for row in csv.DictReader(text)]
    return np.load(file), np.array(labels)


if __name__ == "__main__":
    main()
