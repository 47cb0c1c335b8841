"""What the study ``average-pooling`` measures, and what it says about the thesis.

Verdicts. Equalities hold to rounding (1e-6 for the programme, 1e-4 for scores), and the bound for every picture, or
they are "not reproduced". Hulls: "reproduced" if at least half of the pairs of classes overlap for the mean over seeds,
"partly" if any does, else "not reproduced"; but "not tested" where the networks have not learnt to tell classes apart,
MAP@R of the averages being below twice 1 / classes: then hulls overlap whatever pooling does. How much they do before
training is told beside it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.data.pictures import Pictures
from lookalike.geometry import greedy_k_centre
from lookalike.report.seeds import in_words
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike_studies.average_pooling.maths import Combined, active_hulls, combine, fit_classes, histogram_programme
from lookalike_studies.framework.claims import JudgedClaim, Verdict
from lookalike_studies.framework.hulls import Overlap, class_hulls, overlap

EXACT, ROUNDING = 1e-6, 1e-4
LEARNT = 2.0  # times 1 / classes


class Seen(NamedTuple):
    """What one network makes of the pictures that are looked at, and how far the theory holds."""

    features: Tensor  # (B, n, 2)
    prototypes: Tensor  # (m, 2)
    radius: float  # covering radius of all features
    combined: Combined
    hulls: list[Tensor]  # of the active prototypes, by class
    layer: nn.Linear
    figures: dict[str, float]
    of_prototypes: Overlap
    of_pictures: Overlap


def look_at(features: Tensor, labels: Tensor, count: int, active: float, programmes: int) -> Seen:
    """Features (B, n, 2) of pictures with labels (B,), covered by ``count`` prototypes; ``programmes`` are solved."""
    everything = features.flatten(0, 1)
    indices, radii = greedy_k_centre(everything, count)
    prototypes = everything[indices]
    combined = combine(features, prototypes)
    checked = np.linspace(0, len(features) - 1, min(programmes, len(features))).astype(int)
    differences = [histogram_programme(features[i], prototypes) - combined.histogram[i] for i in checked]
    layer = fit_classes(combined.average, labels)
    scores = layer(features)
    hulls = active_hulls(combined.histogram, labels, prototypes, active)
    of_prototypes = overlap(hulls)
    of_pictures = overlap(class_hulls(combined.average, labels))
    radius = float(radii[-1])
    in_cells = torch.stack([combined.histogram[labels == label].sum(0) for label in range(int(labels.max()) + 1)])
    figures = {
        "MAP@R": retrieval_metrics(combined.average, labels, distance="l2")["MAP@R"],
        "MAP@R of PCC": retrieval_metrics(combined.combination, labels, distance="l2")["MAP@R"],
        "programme off by": max(float(each.abs().max()) for each in differences),
        "programmes": len(differences),
        "radius": radius,
        "on the circle": float((torch.linalg.vector_norm(features, dim=-1) > 1 - ROUNDING).double().mean()),
        "error": float(combined.error.mean()),
        "largest error": float(combined.error.max()),
        "violations": combined.beyond(radius, EXACT),
        "scores off by": float((scores.mean(1) - layer(combined.average)).abs().max()),
        "accuracy": float((scores.mean(1).argmax(-1) == labels).double().mean()),
        "places for the decision": float(
            (scores.argmax(-1) == scores.mean(1).argmax(-1, keepdim=True)).double().mean()
        ),
        "overlapping pairs": of_prototypes.pairs,
        "overlap": of_prototypes.share,
        "overlapping pairs of pictures": of_pictures.pairs,
        "overlap of pictures": of_pictures.share,
        "purity": float(in_cells.amax(0).sum() / in_cells.sum()),
    }
    return Seen(features, prototypes, radius, combined, hulls, layer, figures, of_prototypes, of_pictures)


def overlap_of_prototypes(features: Tensor, labels: Tensor, count: int, active: float) -> Overlap:
    """Of the classes' hulls, as ``look_at`` has it, and nothing else."""
    everything = features.flatten(0, 1)
    prototypes = everything[greedy_k_centre(everything, count).indices]
    return overlap(active_hulls(combine(features, prototypes).histogram, labels, prototypes, active))


def claims(
    found: Sequence[Mapping[str, float]], untrained: Sequence[Overlap], pictures: int, classes: int
) -> list[JudgedClaim]:
    """``found``: the figures of each network, see ``look_at``.  untrained: the hulls of each before training."""
    off, radius, error = (max(one[key] for one in found) for key in ("programme off by", "radius", "largest error"))
    violations, scores = sum(int(one["violations"]) for one in found), max(one["scores off by"] for one in found)
    pairs, share, of_pictures = (
        [one[key] for one in found] for key in ("overlapping pairs", "overlap", "overlapping pairs of pictures")
    )
    before, share_before = [each.pairs for each in untrained], [each.share for each in untrained]
    map_at_r = [one["MAP@R"] for one in found]
    learnt = has_learnt(map_at_r, classes)
    solved = sum(int(one["programmes"]) for one in found)
    used = float(np.mean([one["largest error"] / one["radius"] for one in found]))
    purity = float(np.mean([one["purity"] for one in found]))
    return [
        JudgedClaim(
            "the histogram operator, a linear programme, is assignment to the nearest prototype (Claim 4.2.1)",
            f"{solved} programmes solved: histograms differ by at most {off:.1e}",
            "reproduced" if off <= EXACT else "not reproduced",
        ),
        JudgedClaim(
            "average and mixture of prototypes are no farther apart than the covering radius (Proposition 4.2.1)",
            f"{violations} exceptions among {pictures} pictures and {len(found)} networks; at most {error:.3f} apart, "
            f"covering radius {radius:.3f}, of which {used:.0%} is used. Held for the norm; the square, as printed, "
            f"{'follows for a radius up to 1' if radius <= 1 else 'would not follow for a radius above 1'}",
            "not reproduced" if violations else "reproduced",
        ),
        JudgedClaim(
            "class hulls overlap, due to prototypes that classes share (Figure 4.3, without numbers)",
            f"hulls of active prototypes: {_percent(pairs)} of the pairs of classes overlap, by {_percent(share)} of "
            f"the smaller hull on average; before training {_percent(before)}, by {_percent(share_before)}; hulls of "
            f"the averages themselves: {_percent(of_pictures)} of the pairs"
            + ("" if learnt else f"; MAP@R of {_percent(map_at_r)}: the classes have not been learnt"),
            verdict_on_overlap(pairs) if learnt else "not tested",
        ),
        JudgedClaim(
            "the score of a class is the mean of the scores of its places (4.2.4)",
            f"they differ by at most {scores:.1e}",
            "reproduced" if scores <= ROUNDING else "not reproduced",
        ),
        JudgedClaim(
            "prototypes correspond to semantic entities (Figure 4.2, without numbers)",
            f"to be judged by eye, from the patches; {purity:.0%} of the local features belong to the class that is "
            f"most common in their cell, {1 / classes:.0%} would by chance",
            "not tested",
        ),
    ]


def verdict_on_overlap(pairs: Sequence[float]) -> Verdict:
    """Shares of the pairs of classes whose hulls overlap, one for each network."""
    mean = float(np.mean(pairs))
    return "reproduced" if mean >= 0.5 else "partly" if mean > 0 else "not reproduced"


def has_learnt(map_at_r: Sequence[float], classes: int) -> bool:
    """Whether networks tell classes apart; of two classes twice the half would be all, so halfway to it is enough.

    >>> has_learnt([0.21], 10), has_learnt([0.19], 10), has_learnt([0.8], 2), has_learnt([0.7], 2)
    (True, False, True, False)
    """
    return float(np.mean(map_at_r)) >= min(LEARNT / classes, 0.5 + 0.5 / classes)


def _percent(shares: Sequence[float]) -> str:
    return in_words([100 * each for each in shares], 0) + " %"


def data_note(name: str, known: Pictures, shown: Pictures, tried: Mapping[float, float]) -> str:
    figures = ", ".join(f"{100 * figure:.1f} at {margin:g}" for margin, figure in tried.items())
    return (
        f"The thesis looks at CIFAR-10; here it is {name}: {len(known):,} pictures to learn from, {len(shown):,} "
        f"others of the same {len(shown.classes)} classes to look at. Loss and margin are not given: C2, with the "
        f"margin that was best on training pictures kept out for it (MAP@R in percent: {figures})."
    )


def seeds_table(seeds: Sequence[int], seen: Sequence[Seen], untrained: Sequence[Overlap]) -> Table:
    columns = {
        "MAP@R, %": ("MAP@R", 100, 1),
        "of PCC": ("MAP@R of PCC", 100, 1),
        "clipped, %": ("on the circle", 100, 0),
        "covering radius": ("radius", 1, 4),
        "mean error": ("error", 1, 4),
        "largest": ("largest error", 1, 4),
        "above the bound": ("violations", 1, 0),
        "pairs that overlap, %": ("overlapping pairs", 100, 0),
        "overlap, %": ("overlap", 100, 0),
        "overlap untrained, %": ("untrained", 100, 0),
        "right by mean score, %": ("accuracy", 100, 1),
        "places that agree, %": ("places for the decision", 100, 1),
    }
    told = [{**one.figures, "untrained": before.share} for one, before in zip(seen, untrained, strict=True)]
    lines = [
        Line([words(str(seed)), *(number(f * figures[key], digits=d) for key, f, d in columns.values())])
        for seed, figures in zip(seeds, told, strict=True)
    ]
    notes = [
        "clipped: local features that lie on the unit circle; error: the distance between average (GAP) and mixture "
        "of prototypes (PCC); overlap: of the hulls of active prototypes, as a share of the smaller, mean over pairs, "
        "and the same before training; places that agree with the decision of the mean score"
    ]
    return Table([Column("seed", "left"), *map(Column, columns)], lines, notes=notes)


def overlap_table(common: Overlap, classes: Sequence[str]) -> Table:
    columns = [Column("class", "left"), Column("area of its hull"), *(Column(name) for name in classes)]
    lines = [
        Line([words(name), number(float(area), digits=4), *(number(float(each), digits=4) for each in row)])
        for name, area, row in zip(classes, common.areas, common.common, strict=True)
    ]
    return Table(columns, lines, title="Area common to the hulls of two classes (first seed)")
