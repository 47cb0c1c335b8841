"""Claims about where pooling weights lie, and the table of results.

"Better" and "above" mean a larger share of the weight inside the true cell, by more than 0.01. Such a claim fails only
if a difference of 0.05 can be excluded: a third of what a first try saw of GSP above chance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lookalike.demo.training import Outcome
from lookalike.report.tables import Column, Table
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim
from lookalike_studies.framework.tables import tabulate
from lookalike_studies.localisation.masks import Located

CELL = "cell"  # the mask that the claims speak of
LEAST, EFFECT, NEAR = 0.01, 0.05, 0.08
TEXT = "{name}: share {{{name} share:3}}, pointing {{{name} pointing:3}}"


def larger(left: str, right: str, name: str) -> Comparison:
    """Compare shares that should differ in this direction."""
    return Comparison(left, ">", right, name, least=LEAST, effect=EFFECT)


def selects_better(one: str, other: str, reason: str) -> Claim:
    """Create the claim that one pooling selects better than another."""
    comparisons = (
        larger(f"{one} share", f"{other} share", "share"),
        larger(f"{one} pointing", f"{other} pointing", "pointing"),
    )
    here = f"{TEXT.format(name=one)}; {TEXT.format(name=other)}"
    return Claim(f"{one} selects better than {other}: {reason}", comparisons, here=here)


LEARNT = "GSP, learnt share"
CLAIMS = (
    Claim(
        "beyond the papers: GSP's weights point at the object without ever seeing a box",
        (larger("GSP share", "chance", "share"), larger("GSP pointing", "chance", "pointing")),
        here=f"{TEXT.format(name='GSP')}; by chance {{chance:.3f}}",
    ),
    selects_better("GSP", "CroW", "magnitude does not tell nuisance from object (section 5.3.5)"),
    selects_better("GSP", "DeLF", "attention lacks explicit control (section 5.3.5)"),
    selects_better("GSP", "attention", "not in the papers"),
    selects_better(LEARNT, "GSP", "not in the papers"),
    selects_better(LEARNT, "attention", "not in the papers"),
)
DRAWN_CLAIM = Claim(  # only for drawn letters
    "a first try: of the weight lies in the true cell 0.25 by chance, 0.39 with GSP, 0.63 with attention",
    (
        larger("GSP share", "chance", "GSP above chance"),
        larger("attention share", "GSP share", "attention above GSP"),
        Comparison("average pooling share", "within", 0.25, "average pooling 0.25", tolerance=NEAR),
        Comparison("GSP share", "within", 0.39, "GSP 0.39", tolerance=NEAR),
        Comparison("attention share", "within", 0.63, "attention 0.63", tolerance=NEAR),
    ),
    here="; ".join(TEXT.format(name=name) for name in ("average pooling", "GSP", "attention")),
)


def claims(
    locations: Mapping[str, Sequence[Located]], chance: Mapping[str, float], is_drawn: bool
) -> list[JudgedClaim]:
    """Judge all claims, from measurements by pooling and seed; chance: by mask, the share of the pictures it covers."""
    values: dict[str, Any] = {"chance": chance[CELL]}
    for name, by_seed in locations.items():
        values[f"{name} share"] = [located.share[CELL] for located in by_seed]
        values[f"{name} pointing"] = [located.pointing[CELL] for located in by_seed]
    judged = [claim.judge(values) for claim in CLAIMS]
    if is_drawn:
        judged.append(DRAWN_CLAIM.judge(values))
    return judged


def table(
    locations: Mapping[str, Sequence[Located]],
    outcomes: Mapping[str, Sequence[Outcome]],
    rates: Mapping[str, float],
    chance: Mapping[str, float],
) -> Table:
    """Tabulate learning rate, MAP@R, and share and pointing for every mask, by pooling."""
    columns = ["pooling", "rate", Column("MAP@R", best="most")]
    for mask in chance:
        columns += [Column(f"share in {mask}", best="most"), Column(f"points at {mask}", best="most")]
    rows = []
    for name, by_seed in locations.items():
        shares = [[outcome.metrics["MAP@R"] for outcome in outcomes[name]]]
        for mask in chance:
            shares.append([located.share[mask] for located in by_seed])
            shares.append([located.pointing[mask] for located in by_seed])
        rows.append([name, f"{rates[name]:g}", *(100 * np.array(shares))])
    covered = ", ".join(f"{mask} {100 * share:.1f}" for mask, share in chance.items())
    return tabulate(columns, rows, digits=1, notes=[f"percent, on unseen classes; by chance: {covered}"])
