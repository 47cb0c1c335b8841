"""What the authors saw along each axis, and whether what was measured here agrees.

When two means differ, ``measured`` says; what becomes of a claim with several parts, ``claims``. "Alike" is
tested where a difference that matters would have been seen: half a point of MAP@R, half of what all of Table 5.3 gains.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lookalike.experiments.published import published
from lookalike.objectives.presets import DATA_SETS
from lookalike_studies.effects.measured import (
    MATTERS,
    Array,
    Measured,
    alike,
    by_value,
    chance,
    least_of,
    listed,
    mean_of,
    more,
    most_of,
    pairs,
    short_point,
)
from lookalike_studies.framework.claims import Evidence, JudgedClaim, compare, judge

KEEP, M, SHARPNESS = (f"pooling_settings.{name}" for name in ("keep", "num_prototypes", "sharpness"))
LITTLE_KEPT, MANY_PROTOTYPES, ENOUGH_ROUNDS, STABLE_SIZE = 0.4, 64, 25, 128
PULLS = (1e-5, 0.1)  # that work well
STABLE = 1.0  # points of P@1, along the embedding size
ON_PAR = 1.0  # point of MAP@R, the thesis's own word on other poolings
MORE_STEPS = (0.1, 0.35)  # share
LEAST_MORE = 0.05  # a smaller share of steps is none


def keep(m: Measured) -> list[JudgedClaim]:
    name = "C2 + GSP"
    low = m.of(name, keep=lambda x: x <= LITTLE_KEPT)
    all_kept, average = m.one(name, keep=1.0), m.one("C2, average pooling")
    parts = [
        more("the drop", mean_of(low) - all_kept, m.margin),
        alike("low mu", low, m.margin, MATTERS),
    ]
    here = f"up to {LITTLE_KEPT:g}: {listed(low)}; keeping all: {all_kept:.2f}; average pooling: {average:.2f}"
    paper = "low mu perform alike, and as mu grows the performance drops towards average pooling (Figure 5.8)"
    return [judge(paper, here + chance(m), parts)]


def sharpness_prototypes(m: Measured) -> list[JudgedClaim]:
    claims = []
    for name, best, other in (("C2", 5.0, 0.5), ("ProxyNCA++", 0.5, 5.0)):
        by_m, by_sharpness = (by_value(m, name, what) for what in ("num_prototypes", "sharpness"))
        margin = m.margin_of(len(by_sharpness))
        others = most_of([mean for count, mean in by_m.items() if count != 64])
        part = more("64 is best", by_m.get(64, np.nan) - others, margin)
        here = f"means by m: {pairs(by_m)}"
        claims.append(judge(f"{name}: m = 64 is best (Figure 5.10)", here + chance(m, margin), [part]))
        margin = m.margin_of(len(by_m))
        lead = by_sharpness.get(best, np.nan) - by_sharpness.get(other, np.nan)
        here = f"means by epsilon: {pairs(by_sharpness)}"
        paper = f"{name}: epsilon = {best:g} is better than {other:g} (Figure 5.10)"
        claims.append(judge(paper, here + chance(m, margin), [more(f"{best:g} is better", lead, margin)]))
    return claims


def prototypes(m: Measured) -> list[JudgedClaim]:
    claims = []
    for loss in ("C2", "ProxyNCA++"):
        many = m.of(f"{loss} + GSP", num_prototypes=lambda x: x >= MANY_PROTOTYPES)
        average = m.one(f"{loss}, average pooling")
        few = m.of(f"{loss} + GSP", num_prototypes=lambda x: x < MANY_PROTOTYPES)
        here = f"m from {MANY_PROTOTYPES}: {listed(many)}; fewer: {listed(few)}; average pooling {average:.2f}"
        parts = [
            more("better than average pooling", least_of(many) - average, m.margin),
            alike("no effect of m", many, m.margin, MATTERS),
        ]
        paper = f"{loss}: m has no significant effect from 64 on, and any such m is better than average pooling"
        claims.append(judge(f"{paper} (Figure 5.11)", here + chance(m), parts))
    return claims


def iterations(m: Measured) -> list[JudgedClaim]:
    exact = m.one("solved exactly (this layer)")
    claims = []
    for name in ("k rounds, closed-form gradient", "k rounds, autograd"):
        enough = m.of(name, iterations=lambda k: k >= ENOUGH_ROUNDS)
        fewer = m.of(name, iterations=lambda k: k < ENOUGH_ROUNDS)
        part = alike("similar performance", np.append(enough, exact), m.margin, MATTERS)
        here = f"k from {ENOUGH_ROUNDS}: {listed(enough)}; fewer: {listed(fewer)}; solved exactly: {exact:.2f}"
        claims.append(judge(f"{name}: similar performance from k = 25 on (5.3.4.4)", here + chance(m), [part]))
    return claims


def embedding_size(m: Measured) -> list[JudgedClaim]:
    ours, other = "ProxyAnchor + farthest centres", "MS"
    large = m.of(ours, dim=lambda x: x >= STABLE_SIZE)
    small = m.of(ours, dim=lambda x: x < STABLE_SIZE)
    here = f"below {STABLE_SIZE}: {listed(small)}; from {STABLE_SIZE} on: {listed(large)}"
    stable = judge(
        "their loss is fairly stable from 128 dimensions on (text on skewed means, Figure 2)",
        here + chance(m),
        [alike("stable", large, m.margin, STABLE)],
    )
    ends = [(m.one(name, dim=1024), m.of(name, dim=lambda x: STABLE_SIZE <= x < 1024)) for name in (ours, other)]
    drops = [float(before[-1]) - last if len(before) else np.nan for last, before in ends]
    parts = [more("MS degrades", drops[1], m.margin, STABLE), Evidence("no loss of theirs", drops[0], m.margin, STABLE)]
    here = "; ".join(
        f"{name}: before 1024 {before[-1]:.2f}, at 1024 {last:.2f}"
        for name, (last, before) in zip((ours, other), ends, strict=True)
        if len(before)
    )
    degrades = judge("their loss does not degrade at 1024 dimensions, unlike MS (the same)", here + chance(m), parts)
    leads = [a - b for a, b in zip(m.of(ours), m.of(other), strict=False)]
    beats = judge(
        "their loss outperforms MS in all dimensions (the same)",
        f"{ours}: {listed(m.of(ours))}; MS: {listed(m.of(other))}{chance(m)}",
        [
            more("in the mean", mean_of(leads), m.margin, STABLE),
            more("in all dimensions", least_of(leads), m.margin, STABLE),
        ],
    )
    return [stable, degrades, beats]


def lambda_proxies(m: Measured) -> list[JudgedClaim]:
    pulls, proxies = (by_value(m, "C2 + CCP", what) for what in ("ccp_pull", "ccp_proxies"))
    margin = m.margin_of(len(proxies))
    good = mean_of([mean for pull, mean in pulls.items() if PULLS[0] <= pull <= PULLS[1]])
    much = mean_of([mean for pull, mean in pulls.items() if pull > PULLS[1]])
    parts = [more("none is worse", good - pulls.get(0.0, np.nan), margin), more("much is worse", good - much, margin)]
    here = f"means by lambda: {pairs(pulls)}"
    paper = "none and much of lambda are worse than 1e-5 to 1e-1 (Figure 3.5)"
    first = judge(paper, here + chance(m, margin), parts)
    counts = sorted(proxies)
    few, some, many = (proxies.get(n, np.nan) for n in (1, 4, counts[-1] if counts else 0))
    margin = m.margin_of(len(pulls))
    bend = (2 * some - few - many) / np.sqrt(3)  # has the error of a difference
    saturates = float(np.minimum(some - few, bend))
    paper = "more proxies are better, and the increase saturates (Figures 3.5 and 3.6)"
    here = f"means by proxies: {pairs(proxies)}"
    parts = [more("more are better", many - few, margin), more("saturates", saturates, margin)]
    return [first, judge(paper, here + chance(m, margin), parts)]


def pool_proxies(m: Measured) -> list[JudgedClaim]:
    name = "C2 + CCP"
    proxies = sorted({point.values["ccp_proxies"] for point in m.points})
    pools = {n: sorted({p.values["ccp_pool"] for p in m.points if p.values["ccp_proxies"] == n}) for n in proxies}
    largest = {n: m.one(name, ccp_pool=pools[n][-1], ccp_proxies=n) for n in proxies}
    smallest = {n: m.one(name, ccp_pool=pools[n][0], ccp_proxies=n) for n in proxies}
    most = proxies[-1]
    here = f"random: {pairs(smallest)}; from the largest pool: {pairs(largest)} (by proxies)"
    parts = [
        more("more proxies help", largest[most] - largest[proxies[0]], m.margin),
        more("a larger pool helps", largest[most] - smallest[most], m.margin),
    ]
    claims = [judge("more proxies help, and so does a larger pool (Figure 3.6)", here + chance(m), parts)]
    if proxies[0] == 1:
        part = Evidence("no better", largest[1] - smallest[1], m.margin, MATTERS)
        paper = "with a single proxy a larger pool is no better than a random choice (Figure 3.6)"
        claims.append(judge(paper, here + chance(m), [part]))
    return claims


def batch_size(m: Measured) -> list[JudgedClaim]:
    plain, ccp = (m.of(name) for name in ("C2", "C2 + CCP"))
    first = judge(
        "the plain contrastive loss gets better with the batch size (Figure 3.8)",
        f"C2: {listed(plain)}{chance(m)}",
        [more("better", plain[-1] - plain[0], m.margin)],
    )
    second = judge(
        "CCP with a small batch is on par with a large one (Figure 3.8)",
        f"C2 + CCP: {listed(ccp)}{chance(m)}",
        [Evidence("on par", abs(ccp[-1] - ccp[0]), m.margin, MATTERS)],
    )
    return [first, second]


def zero_shot(m: Measured) -> list[JudgedClaim]:
    names = ("C2", "C2 + GSP", "C2 + zero-shot", "C2 + GSP + zero-shot")
    plain, gsp, zero, both = (m.one(name) for name in names)
    data_set = m.data_set if m.data_set in DATA_SETS else "cub"
    printed = published(table="5.3", data_set=data_set, size=128, metric="MAP@R") or ()
    theirs = ", ".join(f"{each.method} {each}" for each in printed)
    parts = [
        more("GSP improves", gsp - plain, m.margin, 0.27),  # as much as in Table 5.3, on CUB
        more("zero-shot improves", zero - plain, m.margin, 0.5),
        more("both are best", both - most_of([plain, gsp, zero]), m.margin, 0.44),
    ]
    here = f"{plain:.2f} plain, {gsp:.2f} GSP, {zero:.2f} zero-shot, {both:.2f} both"
    paper = "each of GSP and the zero-shot loss improves C2, and both together are best"
    return [judge(f"{paper} (Table 5.3, {data_set} 128-D: {theirs})", here + chance(m), parts)]


def main_effects(settings: Sequence[dict[str, Any]], figures: Array) -> dict[str, float]:
    """The mean at the higher level less that at the lower, of each setting. figures (runs,).

    >>> main_effects([{"m": 16}, {"m": 128}], np.array([1.0, 3.0]))
    {'m': 2.0}
    """
    effects = {}
    for name in settings[0]:
        values = np.array([float(each[name]) for each in settings])
        effects[name] = float(figures[values == values.max()].mean() - figures[values == values.min()].mean())
    return effects


def factorial(m: Measured) -> list[JudgedClaim]:
    claims = []
    for name, loss in (("C2", "c2"), ("ProxyNCA++", "proxy-nca++")):
        where = m.where(name)
        ours = main_effects([short_point(m.points[i]) for i in where], m.means[where])
        theirs = published_effects(loss)
        margin = m.margin_of(len(where) / 2)  # an effect is a difference of two means of half of the runs
        here = f"effects here {pairs(ours, '+.2f')}; of their table {pairs(theirs, '+.2f')}{chance(m, margin)}"
        others = most_of([abs(effect) for each, effect in ours.items() if each != "sharpness"])
        parts = [
            more("epsilon has the most effect", abs(ours["sharpness"]) - others, margin),
            Evidence("none of m", abs(ours["num_prototypes"]), margin, MATTERS),
        ]
        paper = f"{name}: epsilon has the most effect, m no significant one (section 5.3.4.5)"
        claims.append(judge(paper, here, parts))
        parts = [more("lambda", -ours["zero_shot"], margin), more("mu", -ours["keep"], margin)]
        paper = f"{name}: the lower the better for lambda and mu (section 5.3.4.5)"
        claims.append(judge(paper, here, parts))
    return claims


def published_effects(loss: str) -> dict[str, float]:
    """Main effects of Table 5.4 itself."""
    runs = [each for each in published(table="5.4", loss=loss, pooling="gsp") or () if each.settings]
    return main_effects([each.settings for each in runs], np.array([each.mean for each in runs]))


def poolings(m: Measured) -> list[JudgedClaim]:
    gsp, average = m.one("GSP"), m.one("average (GAP)")
    others = {p.series: m.one(p.series) for p in m.points if p.series not in ("GSP", "average (GAP)", "max+GSP")}
    done = {name: mean for name, mean in others.items() if not np.isnan(mean)}
    if len(done) < 1 or np.isnan([gsp, average, m.margin]).any():
        return [
            JudgedClaim("GSP is superior to the 13 alternatives (Figure 5.12)", "too little was done", "not tested")
        ]
    ahead = {name: mean for name, mean in done.items() if mean - gsp > m.margin}
    best, most = max(done, key=lambda name: done[name]), most_of([*others.values()])
    missing = "".join(f"; {name} is missing" for name in others if name not in done)
    here = f"GSP {gsp:.2f}, average {average:.2f}, {best} {done[best]:.2f}; "
    here += f"{len(done) - len(ahead)} of {len(done)} are not ahead of GSP{missing}"
    here += f"; ahead: {pairs(ahead)}" if ahead else ""
    first = judge(
        "GSP is superior to the 13 alternatives (Figure 5.12)",
        here + chance(m),
        [more("superior", gsp - most, m.margin)],
    )
    paper = "in CUB the alternatives are on par with average pooling or worse, none by more than 1 point better (5.3.5)"
    here = f"{best} is best of them, {done[best] - average:+.2f}{missing}"
    small = Evidence("none by more", most - average - ON_PAR, m.margin, ON_PAR)
    return [first, judge(paper, here + chance(m), [small])]


def alternating(m: Measured) -> list[JudgedClaim]:
    """Of the figures; the steps are ``more_steps``."""
    claims = []
    for loss in ("C2", "MS", "Triplet"):
        plain, single, both = (m.one(name) for name in (loss, f"{loss}, single problem", f"{loss} + CCP"))
        here = f"{loss} {plain:.2f}, proxies of a single problem {single:.2f}, alternating {both:.2f}"
        paper = f"{loss}: alternating proxies are better than those of a single problem (Figure 3.7)"
        claims.append(judge(paper, here + chance(m), [more("better", both - single, m.margin)]))
    return claims


Steps = Mapping[str, Sequence[float]]  # by series, of each seed


def more_steps(best_steps: Steps, last: Steps) -> list[JudgedClaim]:
    """By the step of the best weights. ``last``: how many steps there were at most."""
    claims = []
    for loss, name in (("C2", "c2"), ("MS", "ms"), ("Triplet", "triplet")):
        theirs = []
        for data_set in ("sop", "inshop"):
            found = {
                each.ccp: each.mean for each in published(table="3.3", loss=name, data_set=data_set, memory=False) or ()
            }
            theirs.append(f"{found[True] / found[False] - 1:+.0%} in {data_set}")
        paper = f"{loss}: CCP takes 10 % to 35 % more steps (Table 3.3: {', '.join(theirs)})"
        plain, ccp = (np.array(best_steps.get(each, [np.nan])) for each in (loss, f"{loss} + CCP"))
        if not (len(plain) and len(ccp)) or np.isnan([*plain, *ccp]).any() or not plain.all():
            claims.append(JudgedClaim(paper, "no step was better than the start", "not tested"))
            continue
        extra = float(ccp.mean() / plain.mean()) - 1
        here = f"best after {plain.mean():.0f} steps plain, {ccp.mean():.0f} with CCP ({extra:+.0%})"
        ends = plain.mean() / np.mean(last[loss]), ccp.mean() / np.mean(last[f"{loss} + CCP"])
        if max(ends) > 0.9:
            here += "; the steps ended before the figures stopped growing"
            claims.append(JudgedClaim(paper, here, "not tested"))
        elif len(plain) != len(ccp) or len(plain) < 2:
            here += "; not known for each of several seeds, so nothing is known of chance"
            claims.append(JudgedClaim(paper, here, "not tested"))
        else:
            low, high = MORE_STEPS
            within = Evidence("10 % to 35 %", abs(extra - (low + high) / 2), (high - low) / 2, np.inf)
            claims.append(
                judge(paper, here, [compare("more steps", ccp / plain, 1.0, LEAST_MORE, effect=MORE_STEPS[0]), within])
            )
    return claims


RULES: dict[str, Callable[[Measured], list[JudgedClaim]]] = {
    "keep": keep,
    "sharpness-prototypes": sharpness_prototypes,
    "prototypes": prototypes,
    "iterations": iterations,
    "embedding-size": embedding_size,
    "lambda-proxies": lambda_proxies,
    "pool-proxies": pool_proxies,
    "alternating": alternating,
    "batch-size": batch_size,
    "zero-shot": zero_shot,
    "factorial": factorial,
    "poolings": poolings,
}
