"""What the runs of the CIFAR collage show, and what the thesis claims against it.

Verdicts. Gains are in points of MAP@R on the test, seed by seed, and surely above 0 if they count as ``claims`` says;
with one seed nothing is tested. On GSP over GAP: "reproduced" if surely above 0 and from 10 points on; "partly" from 2
on; else "not reproduced", if 10 points can be excluded. On the zero-shot loss over plain GSP: "reproduced" if surely
above 0, "not reproduced" if 2 points can be excluded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.seeds import count_in_words, entry, in_words
from lookalike.report.tables import Column, Line, Table, words
from lookalike_studies.framework.claims import JudgedClaim, Verdict, compare, is_above, verdict_from_flags

GAP, GSP, ZERO_SHOT, DISTILLED = "GAP", "GSP", "GSP + zero-shot", "GAP, distilled"
MUCH, SOME = 10.0, 2.0  # points


class Run(NamedTuple):
    """One contestant with one seed."""

    curve: list[tuple[int, float]]  # step, MAP@R of the validation
    losses: list[float]
    figures: dict[str, float]  # of the test
    in_cell: dict[str, float]  # mean share of the weight in the true cell, "training" and "test"; none if distilled
    from_cell: dict[str, float]  # and of the vector that comes from there, "start" and "test", both on the test
    weights: NDArray[np.float32]  # of the shown collages


def points(runs: Sequence[Run]) -> list[float]:
    """MAP@R of the test in percent, one for each seed."""
    return [100 * run.figures["MAP@R"] for run in runs]


def verdict_on_gsp(gains: Sequence[float]) -> Verdict:
    gain = compare("GSP", gains, 0.0, effect=MUCH)
    if gain.holds is None:
        return "not tested"
    return (
        "not reproduced"
        if not gain.holds or gain.difference < SOME
        else "reproduced"
        if gain.difference >= MUCH
        else "partly"
    )


def verdict_on_zero_shot(gains: Sequence[float]) -> Verdict:
    return verdict_from_flags([is_above(gains, 0.0, effect=SOME)])


def claims(figures: Mapping[str, Sequence[float]]) -> list[JudgedClaim]:
    """``figures``: MAP@R of the test in percent, one for each seed."""
    gsp, zero_shot, both = (
        [one - other for one, other in zip(figures[better], figures[worse], strict=True)]
        for better, worse in ((GSP, GAP), (ZERO_SHOT, GSP), (ZERO_SHOT, GAP))
    )
    told = {name: f"{name} {in_words(of)}" for name, of in figures.items()}
    return [
        JudgedClaim(
            "GSP is about 17 points of MAP@R ahead of GAP on unseen sub-classes (section 5.3.2, conclusions)",
            f"{told[GSP]}, {told[GAP]}: {np.mean(gsp):+.1f} points; {told[DISTILLED]} has no background to leave out; "
            f"{told_seeds(len(gsp))}",
            verdict_on_gsp(gsp),
        ),
        JudgedClaim(
            "the zero-shot loss adds more (Figure 5.5)",
            f"{told[ZERO_SHOT]}: {np.mean(zero_shot):+.1f} points over GSP, {np.mean(both):+.1f} over GAP; "
            f"{told_seeds(len(gsp))}",
            verdict_on_zero_shot(zero_shot),
        ),
    ]


def table(runs: Mapping[str, Sequence[Run]]) -> Table:
    columns = [Column("", "left"), Column("MAP@R", best="most"), Column("P@1", best="most"), Column("validation")]
    columns += [Column("weight in the true cell, training"), Column("test")]
    columns += [Column("of the vector from there, start"), Column("trained")]
    lines = []
    for name, own in runs.items():
        values = [
            points(own),
            [100 * run.figures["P@1"] for run in own],
            [100 * max(figure for _, figure in run.curve[1:]) for run in own],
        ]
        if name != DISTILLED:
            values += [[100 * run.in_cell[part] for run in own] for part in ("training", "test")]
            values += [[100 * run.from_cell[part] for run in own] for part in ("start", "test")]
        entries = [entry(of, digits=1) for of in values]
        entries += [words("")] * (len(columns) - 1 - len(entries))
        lines.append(Line([words(name), *entries], group="distilled" if name == DISTILLED else ""))
    notes = [
        "percent, mean and standard deviation over seeds; a cell is 25 % of a collage. Of the vector: on the test, the "
        "true cell's part of the weighted sum, along that sum; a network may learn to say little about the rest"
    ]
    return Table(columns, lines, notes=notes)


def told_seeds(count: int) -> str:
    return count_in_words(count) + (", which is not enough to say anything" if count == 1 else "")
