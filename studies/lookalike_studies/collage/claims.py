"""Claims and table of the study ``collage``; MAP@R in percent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.tables import Column, Table
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim
from lookalike_studies.framework.tables import format_seed_count, tabulate

GAP, GSP, ZERO_SHOT, DISTILLED = "GAP", "GSP", "GSP + zero-shot", "GAP, distilled"
DELF, ATTENTION = "DeLF", "attention"

GSP_CLAIM = Claim(
    "GSP is about 17 points of MAP@R ahead of GAP on unseen sub-classes (section 5.3.2, conclusions)",
    (Comparison(GSP, ">", GAP, effect=10.0),),
    reproduced_from=10.0,
    partly_from=2.0,
    here="GSP {GSP}, GAP {GAP}: {GSP over GAP:+.1f} points; {seeds}",
)
ZERO_SHOT_CLAIM = Claim(
    "the zero-shot loss adds more (Figure 5.5)",
    (Comparison(ZERO_SHOT, ">", GSP, effect=2.0),),
    here="GSP + zero-shot {GSP + zero-shot}: {zero-shot over GSP:+.1f} points over GSP, {zero-shot over GAP:+.1f} over "
    "GAP; {seeds}",
)
COLUMNS = (
    "",
    Column("MAP@R", best="most"),
    Column("P@1", best="most"),
    "weight in the true cell, training",
    "test",
    "of the vector from there, start",
    "trained",
)
VALIDATION = "validation, best"
TABLE_NOTE = (
    "percent, mean and standard deviation over seeds; a cell is 25 % of a collage. Of the vector: on the test, the "
    "true cell's part of the weighted sum, along that sum; a network may learn small features for the rest"
)


class Run(NamedTuple):
    """One contestant with one seed."""

    curve: list[tuple[int, float]]  # step, MAP@R of the validation; [] without one
    losses: list[float]  # of each epoch
    figures: dict[str, float]  # metrics of the test
    in_cell: dict[str, float]  # mean share of the weight in the true cell: "training", "test"; {} if distilled
    from_cell: dict[str, float]  # share of the vector that comes from there, on the test: "start", "test"
    weights: NDArray[np.float32]  # of the shown collages


def percent(runs: Sequence[Run]) -> list[float]:
    """Collect MAP@R of the test in percent, one value per seed."""
    return [100 * run.figures["MAP@R"] for run in runs]


def judge_claims(map_at_r: Mapping[str, Sequence[float]]) -> list[JudgedClaim]:
    """Judge the claims whose contestants took part; ``map_at_r``: of the test in percent, by contestant and seed."""
    if GSP not in map_at_r or GAP not in map_at_r:
        return []
    values = {**map_at_r, "GSP over GAP": np.subtract(map_at_r[GSP], map_at_r[GAP])}
    seeds = format_seed_count(len(map_at_r[GSP]))
    if len(map_at_r[GSP]) == 1:
        seeds += ", which is too few for a verdict"
    judged = [GSP_CLAIM.judge(values, seeds=seeds)]
    if ZERO_SHOT in map_at_r:
        values["zero-shot over GSP"] = np.subtract(map_at_r[ZERO_SHOT], map_at_r[GSP])
        values["zero-shot over GAP"] = np.subtract(map_at_r[ZERO_SHOT], map_at_r[GAP])
        judged.append(ZERO_SHOT_CLAIM.judge(values, seeds=seeds))
    return judged


def runs_table(runs: Mapping[str, Sequence[Run]]) -> Table:
    """Tabulate retrieval, pooling weights and contributions of all contestants, and the validation if there is one."""
    rows, groups = [], []
    validated = any(run.curve for of_seeds in runs.values() for run in of_seeds)
    for name, of_seeds in runs.items():
        metrics = []
        for run in of_seeds:
            values = [run.figures["MAP@R"], run.figures["P@1"]]
            if validated:
                values.append(np.array(run.curve)[1:, 1].max())
            metrics.append([*values, *run.in_cell.values(), *run.from_cell.values()])
        rows.append([name, *(100 * np.array(metrics).T)])
        groups.append("distilled" if name == DISTILLED else "")
    columns = list(COLUMNS)
    if validated:
        columns.insert(3, VALIDATION)
    return tabulate(columns, rows, digits=1, groups=groups, notes=[TABLE_NOTE])
