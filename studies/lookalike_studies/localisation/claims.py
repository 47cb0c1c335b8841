"""Claims about where pooling weights lie, and the table of results.

"Better" and "above" mean a larger share of the weight inside the true cell, by more than 0.01. Such a claim fails only
if a difference of 0.05 can be excluded: a third of what a first try saw of GSP above chance.
"""

from collections.abc import Mapping, Sequence

from lookalike.demo.training import Outcome
from lookalike.report.tables import Column, Entry, Line, Table, words
from lookalike_studies.framework.claims import Claim, Comparison, JudgedClaim, Values
from lookalike_studies.framework.seeds import format_mean, mean_entry
from lookalike_studies.localisation.masks import Located

CELL = "cell"  # the mask that the claims speak of
LEAST, EFFECT, NEAR = 0.01, 0.05, 0.08


def larger(left: str, right: str, name: str) -> Comparison:
    """Compare shares that should differ in this direction."""
    return Comparison(left, ">", right, name, least=LEAST, effect=EFFECT)


def selects_better(one: str, other: str, reason: str) -> tuple[Claim, tuple[str, ...]]:
    """Create the claim that one pooling selects better than another."""
    comparisons = (
        larger(f"{one} share", f"{other} share", "share"),
        larger(f"{one} pointing", f"{other} pointing", "pointing"),
    )
    return Claim(f"{one} selects better than {other}: {reason}", comparisons), (one, other)


LEARNT = "GSP, learnt share"
# Claims, and the poolings that their text lists.
CLAIMS: tuple[tuple[Claim, tuple[str, ...]], ...] = (
    (
        Claim(
            "beyond the papers: GSP's weights point at the object without ever seeing a box",
            (larger("GSP share", "chance", "share"), larger("GSP pointing", "chance", "pointing")),
        ),
        ("GSP",),
    ),
    selects_better("GSP", "CroW", "magnitude does not tell nuisance from object (section 5.3.5)"),
    selects_better("GSP", "DeLF", "attention lacks explicit control (section 5.3.5)"),
    selects_better("GSP", "attention", "not in the papers"),
    selects_better(LEARNT, "GSP", "not in the papers"),
    selects_better(LEARNT, "attention", "not in the papers"),
)
DRAWN_CLAIM = (  # only for drawn letters
    Claim(
        "a first try: of the weight lies in the true cell 0.25 by chance, 0.39 with GSP, 0.63 with attention",
        (
            larger("GSP share", "chance", "GSP above chance"),
            larger("attention share", "GSP share", "attention above GSP"),
            Comparison("average pooling share", "within", 0.25, "average pooling 0.25", tolerance=NEAR),
            Comparison("GSP share", "within", 0.39, "GSP 0.39", tolerance=NEAR),
            Comparison("attention share", "within", 0.63, "attention 0.63", tolerance=NEAR),
        ),
    ),
    ("average pooling", "GSP", "attention"),
)


def claims(
    locations: Mapping[str, Sequence[Located]], chance: Mapping[str, float], is_drawn: bool
) -> list[JudgedClaim]:
    """Judge all claims.

    Args:
        locations: By pooling, what was measured with each seed.
        chance: By mask, the share of the pictures that it covers.
        is_drawn: Whether the pictures are drawn letters.

    Returns:
        The claims with their verdicts.
    """
    shares: dict[str, list[float]] = {}
    for name, by_seed in locations.items():
        shares[f"{name} share"] = [located.share[CELL] for located in by_seed]
        shares[f"{name} pointing"] = [located.pointing[CELL] for located in by_seed]
    values: Values = {**shares, "chance": chance[CELL]}
    judged = []
    for claim, names in [*CLAIMS, DRAWN_CLAIM] if is_drawn else CLAIMS:
        texts = []
        for name in names:
            share, pointing = shares[f"{name} share"], shares[f"{name} pointing"]
            texts.append(f"{name}: share {format_mean(share, 3)}, pointing {format_mean(pointing, 3)}")
        if len(names) == 1:
            texts.append(f"by chance {chance[CELL]:.3f}")
        judged.append(claim.judge(values, "; ".join(texts)))
    return judged


def table(
    locations: Mapping[str, Sequence[Located]],
    outcomes: Mapping[str, Sequence[Outcome]],
    rates: Mapping[str, float],
    chance: Mapping[str, float],
) -> Table:
    """Create the table of all poolings; the arguments are those of ``claims``, by pooling.

    Args:
        locations: What was measured with each seed.
        outcomes: The trained models.
        rates: The chosen learning rates.
        chance: By mask, the share of the pictures that it covers.

    Returns:
        Learning rate, MAP@R, and share and pointing for every mask.
    """
    columns = [Column("pooling", "left"), Column("rate"), Column("MAP@R", best="most")]
    for mask in chance:
        columns += [Column(f"share in {mask}", best="most"), Column(f"points at {mask}", best="most")]
    lines = []
    for name, by_seed in locations.items():
        map_at_r = [outcome.metrics["MAP@R"] for outcome in outcomes[name]]
        entries = [words(name), words(f"{rates[name]:g}"), _percent(map_at_r)]
        for mask in chance:
            entries.append(_percent([located.share[mask] for located in by_seed]))
            entries.append(_percent([located.pointing[mask] for located in by_seed]))
        lines.append(Line(entries))
    covered = ", ".join(f"{mask} {100 * share:.1f}" for mask, share in chance.items())
    return Table(columns, lines, notes=[f"percent, on unseen classes; by chance: {covered}"])


def _percent(shares: Sequence[float]) -> Entry:
    return mean_entry([100 * share for share in shares], digits=1)
