"""Which pooling selects better than which, and what was known or claimed of it.

Verdicts. "Better", "above": the mean over seeds is larger, seed by seed, by what ``claims`` says and by more than 0.01;
it is not if 0.05 can be excluded; else, and with one seed, nothing is tested. "Near": within 0.08, where the seeds
agree better than that. Of a claim with several parts: all hold, reproduced; none, not reproduced; else partly, but not
for being near alone.
"""

from collections.abc import Sequence

import numpy as np

from lookalike.demo.race import Outcome
from lookalike.report.seeds import entry, in_words
from lookalike.report.tables import Column, Entry, Line, Table, words
from lookalike_studies.framework.claims import Evidence, JudgedClaim, compare, judge, noise_margin
from lookalike_studies.localisation.masks import Located

CELL = "cell"  # the mask that the claims speak of
FIRST_TRY = {"average pooling": 0.25, "GSP": 0.39, "attention": 0.63}  # of the weight in the true cell
LEAST = 0.01  # a smaller difference is none
CLAIMED = 0.05  # a third of what the first try saw of GSP above chance: who says "better" means no less
NEAR = 0.08  # a share this close counts as the same


def larger(name: str, one: Sequence[float], other: Sequence[float] | float) -> Evidence:
    """The part which says that ``one`` is larger, seed by seed."""
    return compare(name, one, other, LEAST, effect=CLAIMED)


def near(name: str, values: Sequence[float], known: float) -> Evidence:
    """The part which says that the mean is as known; the seeds must agree better than that."""
    coarse = not noise_margin(values) < NEAR
    return Evidence(name, float("nan") if coarse else abs(float(np.mean(values)) - known), NEAR, np.inf)


def claims(places: dict[str, list[Located]], chance: dict[str, float], is_drawn: bool) -> list[JudgedClaim]:
    share, pointing = (
        {name: [getattr(each, what)[CELL] for each in own] for name, own in places.items()}
        for what in ("share", "pointing")
    )

    def told(*names: str) -> str:
        return "; ".join(
            f"{name}: share {in_words(share[name], 3)}, pointing {in_words(pointing[name], 3)}" for name in names
        )

    found = [
        judge(
            "beyond the papers: GSP's weights point at the object without ever seeing a box",
            f"{told('GSP')}; by chance {chance[CELL]:.3f}",
            [larger("share", share["GSP"], chance[CELL]), larger("pointing", pointing["GSP"], chance[CELL])],
        )
    ]
    for one, other, why in (
        ("GSP", "CroW", "magnitude does not tell nuisance from object (section 5.3.5)"),
        ("GSP", "DeLF", "attention lacks explicit control (section 5.3.5)"),
        ("GSP", "attention", "not in the papers"),
        ("GSP, learnt share", "GSP", "not in the papers"),
        ("GSP, learnt share", "attention", "not in the papers"),
    ):
        parts = [larger("share", share[one], share[other]), larger("pointing", pointing[one], pointing[other])]
        found.append(judge(f"{one} selects better than {other}: {why}", told(one, other), parts))
    if is_drawn:
        parts = [
            larger("GSP above chance", share["GSP"], chance[CELL]),
            larger("attention above GSP", share["attention"], share["GSP"]),
            *(near(f"{name} {known:g}", share[name], known) for name, known in FIRST_TRY.items()),
        ]
        paper = "a first try: of the weight lies in the true cell 0.25 by chance, 0.39 with GSP, 0.63 with attention"
        found.append(judge(paper, told(*FIRST_TRY), parts))
    return found


def table(
    places: dict[str, list[Located]],
    outcomes: dict[str, list[Outcome]],
    rates: dict[str, float],
    chance: dict[str, float],
) -> Table:
    columns = [Column("pooling", "left"), Column("rate"), Column("MAP@R", best="most")]
    for mask in chance:
        columns += [Column(f"share in {mask}", best="most"), Column(f"points at {mask}", best="most")]

    lines = []
    for name, own in places.items():
        entries = [words(name), words(f"{rates[name]:g}"), _percent([each.figures["MAP@R"] for each in outcomes[name]])]
        for mask in chance:
            entries += [_percent([each.share[mask] for each in own]), _percent([each.pointing[mask] for each in own])]
        lines.append(Line(entries))
    covered = ", ".join(f"{mask} {100 * share:.1f}" for mask, share in chance.items())
    return Table(columns, lines, notes=[f"percent, on unseen classes; by chance: {covered}"])


def _percent(shares: Sequence[float]) -> Entry:
    return entry([100 * each for each in shares], digits=1)
