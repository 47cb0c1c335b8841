"""Claims and table of the study ``collage``; MAP@R in percent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.report.tables import Column, Line, Table, words
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim
from lookalike_studies.framework.seeds import format_mean, format_seed_count, mean_entry

GAP, GSP, ZERO_SHOT, DISTILLED = "GAP", "GSP", "GSP + zero-shot", "GAP, distilled"

GSP_CLAIM = Claim(
    "GSP is about 17 points of MAP@R ahead of GAP on unseen sub-classes (section 5.3.2, conclusions)",
    (Comparison(GSP, ">", GAP, effect=10.0),),
    reproduced_from=10.0,
    partly_from=2.0,
)
ZERO_SHOT_CLAIM = Claim("the zero-shot loss adds more (Figure 5.5)", (Comparison(ZERO_SHOT, ">", GSP, effect=2.0),))
COLUMNS = (
    Column("", "left"),
    Column("MAP@R", best="most"),
    Column("P@1", best="most"),
    Column("validation"),
    Column("weight in the true cell, training"),
    Column("test"),
    Column("of the vector from there, start"),
    Column("trained"),
)
TABLE_NOTE = (
    "percent, mean and standard deviation over seeds; a cell is 25 % of a collage. Of the vector: on the test, the "
    "true cell's part of the weighted sum, along that sum; a network may learn small features for the rest"
)


class Run(NamedTuple):
    """One contestant with one seed."""

    curve: list[tuple[int, float]]  # step, MAP@R of the validation
    losses: list[float]
    figures: dict[str, float]  # metrics of the test
    in_cell: dict[str, float]  # mean share of the weight in the true cell: "training", "test"; {} if distilled
    from_cell: dict[str, float]  # share of the vector that comes from there, on the test: "start", "test"
    weights: NDArray[np.float32]  # of the shown collages


def percent(runs: Sequence[Run]) -> list[float]:
    """Collect MAP@R of the test in percent, one value per seed."""
    return [100 * run.figures["MAP@R"] for run in runs]


def judge_claims(values: Mapping[str, Sequence[float]]) -> list[JudgedClaim]:
    """Judge both claims; ``values`` has MAP@R of the test in percent, by contestant and seed."""
    means, texts = {}, {}
    for name, of_seeds in values.items():
        means[name] = float(np.mean(of_seeds))
        texts[name] = f"{name} {format_mean(of_seeds)}"
    count = len(values[GSP])
    seeds = format_seed_count(count)
    if count == 1:
        seeds += ", which is too few for a verdict"
    gsp = (
        f"{texts[GSP]}, {texts[GAP]}: {means[GSP] - means[GAP]:+.1f} points; {texts[DISTILLED]} has no background to "
        f"leave out; {seeds}"
    )
    zero_shot = (
        f"{texts[ZERO_SHOT]}: {means[ZERO_SHOT] - means[GSP]:+.1f} points over GSP, "
        f"{means[ZERO_SHOT] - means[GAP]:+.1f} over GAP; {seeds}"
    )
    return [GSP_CLAIM.judge(values, gsp), ZERO_SHOT_CLAIM.judge(values, zero_shot)]


def runs_table(runs: Mapping[str, Sequence[Run]]) -> Table:
    """Tabulate retrieval, pooling weights and contributions of all contestants."""
    lines = []
    for name, of_seeds in runs.items():
        rows = []
        for run in of_seeds:
            validation = np.array(run.curve)[1:, 1].max()
            cells = *run.in_cell.values(), *run.from_cell.values()
            rows.append([run.figures["MAP@R"], run.figures["P@1"], validation, *cells])
        entries = [words(name)]
        for values in 100 * np.array(rows).T:
            entries.append(mean_entry(values, digits=1))
        entries += [words("")] * (len(COLUMNS) - len(entries))
        lines.append(Line(entries, group="distilled" if name == DISTILLED else ""))
    return Table(COLUMNS, lines, notes=[TABLE_NOTE])
