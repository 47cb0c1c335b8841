"""What the authors saw along each axis, and whether what was measured here agrees.

When two means differ, ``effects_measured`` says. Of a claim with several parts: all hold, reproduced; none, not
reproduced; else partly.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lookalike.objectives.presets import DATA_SETS
from lookalike.protocols.published import published
from lookalike.studies.effects_measured import (
    Array,
    Measured,
    above,
    alike,
    by_value,
    chance,
    listed,
    no_worse,
    pairs,
    short_point,
    verdict,
)
from lookalike.studies.study import Claim

KEEP, M, SHARPNESS = (f"pooling_settings.{name}" for name in ("keep", "num_prototypes", "sharpness"))
LITTLE_KEPT, MANY_PROTOTYPES, ENOUGH_ROUNDS, STABLE_SIZE = 0.4, 64, 25, 128
PULLS = (1e-5, 0.1)  # that work well


def keep(m: Measured) -> list[Claim]:
    name = "C2 + GSP"
    low = m.of(name, keep=lambda x: x <= LITTLE_KEPT)
    all_kept, average = m.one(name, keep=1.0), m.one("C2, average pooling")
    parts = [alike(low, m.margin), above(float(low.mean()) if len(low) else np.nan, all_kept, m.margin)]
    here = f"up to {LITTLE_KEPT:g}: {listed(low)}; keeping all: {all_kept:.2f}; average pooling: {average:.2f}"
    paper = "low mu perform alike, and as mu grows the performance drops towards average pooling (Figure 5.8)"
    return [Claim(paper, here + chance(m), verdict(parts))]


def sharpness_prototypes(m: Measured) -> list[Claim]:
    claims = []
    for name, best, other in (("C2", 5.0, 0.5), ("ProxyNCA++", 0.5, 5.0)):
        by_m, by_sharpness = (by_value(m, name, what) for what in ("num_prototypes", "sharpness"))
        margin = m.margin / np.sqrt(max(1, len(by_sharpness)))
        at_64, levels = by_m.get(64, np.nan), list(by_m.values())
        parts = [  # where all are alike, none is best
            no_worse(at_64, max(levels, default=np.nan), margin),
            above(at_64, min(levels, default=np.nan), margin),
        ]
        here = f"means by m: {pairs(by_m)}"
        claims.append(Claim(f"{name}: m = 64 is best (Figure 5.10)", here + chance(m), verdict(parts)))
        margin = m.margin / np.sqrt(max(1, len(by_m)))
        part = above(by_sharpness.get(best, np.nan), by_sharpness.get(other, np.nan), margin)
        here = f"means by epsilon: {pairs(by_sharpness)}"
        paper = f"{name}: epsilon = {best:g} is better than {other:g} (Figure 5.10)"
        claims.append(Claim(paper, here + chance(m), verdict([part])))
    return claims


def prototypes(m: Measured) -> list[Claim]:
    claims = []
    for loss in ("C2", "ProxyNCA++"):
        many = m.of(f"{loss} + GSP", num_prototypes=lambda x: x >= MANY_PROTOTYPES)
        average = m.one(f"{loss}, average pooling")
        few = m.of(f"{loss} + GSP", num_prototypes=lambda x: x < MANY_PROTOTYPES)
        here = f"m from {MANY_PROTOTYPES}: {listed(many)}; fewer: {listed(few)}; average pooling {average:.2f}"
        better = above(float(many.min()) if len(many) else np.nan, average, m.margin)
        paper = f"{loss}: m has no significant effect from 64 on, and any such m is better than average pooling"
        claims.append(Claim(f"{paper} (Figure 5.11)", here + chance(m), verdict([alike(many, m.margin), better])))
    return claims


def iterations(m: Measured) -> list[Claim]:
    exact = m.one("solved exactly (this layer)")
    claims = []
    for name in ("k rounds, closed-form gradient", "k rounds, autograd"):
        enough = m.of(name, iterations=lambda k: k >= ENOUGH_ROUNDS)
        fewer = m.of(name, iterations=lambda k: k < ENOUGH_ROUNDS)
        part = alike(np.append(enough, exact), m.margin)
        here = f"k from {ENOUGH_ROUNDS}: {listed(enough)}; fewer: {listed(fewer)}; solved exactly: {exact:.2f}"
        claims.append(Claim(f"{name}: similar performance from k = 25 on (5.3.4.4)", here + chance(m), verdict([part])))
    return claims


def embedding_size(m: Measured) -> list[Claim]:
    ours, other = "ProxyAnchor + farthest centres", "MS"
    large = m.of(ours, dim=lambda x: x >= STABLE_SIZE)
    small = m.of(ours, dim=lambda x: x < STABLE_SIZE)
    here = f"below {STABLE_SIZE}: {listed(small)}; from {STABLE_SIZE} on: {listed(large)}"
    stable = Claim(
        "their loss is fairly stable from 128 dimensions on (text on skewed means, Figure 2)",
        here + chance(m),
        verdict([alike(large, m.margin)]),
    )
    ends = [(m.one(name, dim=1024), m.of(name, dim=lambda x: STABLE_SIZE <= x < 1024)) for name in (ours, other)]
    drops = [above(float(before.max()) if len(before) else np.nan, last, m.margin) for last, before in ends]
    parts = [None if drops[0] is None else not drops[0], drops[1]]
    here = "; ".join(
        f"{name}: best below 1024 {before.max():.2f}, at 1024 {last:.2f}"
        for name, (last, before) in zip((ours, other), ends, strict=True)
        if len(before)
    )
    paper = "their loss does not degrade at 1024 dimensions, unlike MS (the same)"
    wins = [above(a, b, m.margin) for a, b in zip(m.of(ours), m.of(other), strict=False)]
    beats = Claim(
        "their loss outperforms MS in all dimensions (the same)",
        f"{ours}: {listed(m.of(ours))}; MS: {listed(m.of(other))}{chance(m)}",
        verdict(wins),
    )
    return [stable, Claim(paper, here + chance(m), verdict(parts)), beats]


def lambda_proxies(m: Measured) -> list[Claim]:
    pulls, proxies = (by_value(m, "C2 + CCP", what) for what in ("ccp_pull", "ccp_proxies"))
    margin = m.margin / np.sqrt(max(1, len(proxies)))
    good = max((mean for pull, mean in pulls.items() if PULLS[0] <= pull <= PULLS[1]), default=np.nan)
    much = [mean for pull, mean in pulls.items() if pull > PULLS[1]]
    parts = [above(good, pulls.get(0.0, np.nan), margin), above(good, min(much, default=np.nan), margin)]
    here = f"means by lambda: {pairs(pulls)}"
    paper = "none and much of lambda are worse than 1e-5 to 1e-1 (Figure 3.5)"
    first = Claim(paper, here + chance(m), verdict(parts))
    counts = sorted(proxies)
    few, some, many = (proxies.get(n, np.nan) for n in (1, 4, counts[-1] if counts else 0))
    margin = m.margin / np.sqrt(max(1, len(pulls)))
    saturates = None if np.isnan([few, some, many]).any() else bool(many - some < some - few > 0)
    paper = "more proxies are better, and the increase saturates (Figures 3.5 and 3.6)"
    here = f"means by proxies: {pairs(proxies)}"
    return [first, Claim(paper, here + chance(m), verdict([above(many, few, margin), saturates]))]


def pool_proxies(m: Measured) -> list[Claim]:
    name = "C2 + CCP"
    proxies = sorted({point.values["ccp_proxies"] for point in m.points})
    pools = {n: sorted({p.values["ccp_pool"] for p in m.points if p.values["ccp_proxies"] == n}) for n in proxies}
    largest = {n: m.one(name, ccp_pool=pools[n][-1], ccp_proxies=n) for n in proxies}
    smallest = {n: m.one(name, ccp_pool=pools[n][0], ccp_proxies=n) for n in proxies}
    most = proxies[-1]
    here = f"random: {pairs(smallest)}; from the largest pool: {pairs(largest)} (by proxies)"
    parts = [above(largest[most], largest[proxies[0]], m.margin), above(largest[most], smallest[most], m.margin)]
    claims = [Claim("more proxies help, and so does a larger pool (Figure 3.6)", here + chance(m), verdict(parts))]
    if proxies[0] == 1:
        part = no_worse(smallest[1], largest[1], m.margin)
        paper = "with a single proxy a larger pool is no better than a random choice (Figure 3.6)"
        claims.append(Claim(paper, here + chance(m), verdict([part])))
    return claims


def batch_size(m: Measured) -> list[Claim]:
    ends = [(m.of(name)[0], m.of(name)[-1]) for name in ("C2", "C2 + CCP")]
    (small, large), (ccp_small, ccp_large) = ends
    first = Claim(
        "the plain contrastive loss gets better with the batch size (Figure 3.8)",
        f"C2: {listed(m.of('C2'))}{chance(m)}",
        verdict([above(large, small, m.margin)]),
    )
    second = Claim(
        "CCP with a small batch is on par with a large one (Figure 3.8)",
        f"C2 + CCP: {listed(m.of('C2 + CCP'))}{chance(m)}",
        verdict([no_worse(ccp_small, ccp_large, m.margin)]),
    )
    return [first, second]


def zero_shot(m: Measured) -> list[Claim]:
    names = ("C2", "C2 + GSP", "C2 + zero-shot", "C2 + GSP + zero-shot")
    plain, gsp, zero, both = (m.one(name) for name in names)
    data_set = m.data_set if m.data_set in DATA_SETS else "cub"
    printed = published(table="5.3", data_set=data_set, size=128, metric="MAP@R") or ()
    theirs = ", ".join(f"{each.method} {each}" for each in printed)
    parts = [above(gsp, plain, m.margin), above(zero, plain, m.margin), no_worse(both, max(gsp, zero), m.margin)]
    here = f"{plain:.2f} plain, {gsp:.2f} GSP, {zero:.2f} zero-shot, {both:.2f} both"
    paper = "each of GSP and the zero-shot loss improves C2, and both together are best"
    return [Claim(f"{paper} (Table 5.3, {data_set} 128-D: {theirs})", here + chance(m), verdict(parts))]


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


def factorial(m: Measured) -> list[Claim]:
    claims = []
    for name, loss in (("C2", "c2"), ("ProxyNCA++", "proxy-nca++")):
        where = m.where(name)
        ours = main_effects([short_point(m.points[i]) for i in where], m.means[where])
        theirs = published_effects(loss)
        margin = m.margin / np.sqrt(len(where) / 2)  # an effect is a difference of two means of half of the runs
        sizes = {each: abs(effect) for each, effect in ours.items()}
        known = not np.isnan([margin, *sizes.values()]).any()
        order = f"effects here {pairs(ours, '+.2f')}; of their table {pairs(theirs, '+.2f')}"
        parts: list[bool | None] = [None, None]
        if known:
            parts = [sizes["sharpness"] == max(sizes.values()), sizes["num_prototypes"] <= margin]
        paper = f"{name}: epsilon has the most effect, m no significant one (section 5.3.4.5)"
        claims.append(Claim(paper, order + chance(m, margin), verdict(parts)))
        parts = [ours[each] < 0 if known else None for each in ("zero_shot", "keep")]
        paper = f"{name}: the lower the better for lambda and mu (section 5.3.4.5)"
        claims.append(Claim(paper, order + chance(m, margin), verdict(parts)))
    return claims


def published_effects(loss: str) -> dict[str, float]:
    """Main effects of Table 5.4 itself."""
    runs = [each for each in published(table="5.4", loss=loss, pooling="gsp") or () if each.settings]
    return main_effects([each.settings for each in runs], np.array([each.mean for each in runs]))


def poolings(m: Measured) -> list[Claim]:
    gsp, average = m.one("GSP"), m.one("average (GAP)")
    others = {p.series: m.one(p.series) for p in m.points if p.series not in ("GSP", "average (GAP)", "max+GSP")}
    done = {name: mean for name, mean in others.items() if not np.isnan(mean)}
    if len(done) < 1 or np.isnan([gsp, average, m.margin]).any():
        return [Claim("GSP is superior to the 13 alternatives (Figure 5.12)", "too little was done", "not tested")]
    ahead = {name: mean for name, mean in done.items() if mean - gsp > m.margin}
    here = f"GSP {gsp:.2f}, average {average:.2f}; {len(done) - len(ahead)} of {len(done)} are not ahead of GSP"
    here += f"; ahead: {pairs(ahead)}" if ahead else ""
    first = Claim(
        "GSP is superior to the 13 alternatives (Figure 5.12)",
        here + chance(m),
        verdict([gsp > max(done.values()), not ahead]),
    )
    best = max(done, key=lambda name: done[name])
    small = done[best] - average < 1
    paper = "in CUB the alternatives are on par with average pooling or worse, none by more than 1 point better (5.3.5)"
    return [first, Claim(paper, f"{best} is best of them, {done[best] - average:+.2f}", verdict([small]))]


def alternating(m: Measured) -> list[Claim]:
    """Of the figures; the steps are ``more_steps``."""
    claims = []
    for loss in ("C2", "MS", "Triplet"):
        plain, single, both = (m.one(name) for name in (loss, f"{loss}, single problem", f"{loss} + CCP"))
        here = f"{loss} {plain:.2f}, proxies of a single problem {single:.2f}, alternating {both:.2f}"
        paper = f"{loss}: alternating proxies are better than those of a single problem (Figure 3.7)"
        claims.append(Claim(paper, here + chance(m), verdict([above(both, single, m.margin)])))
    return claims


def more_steps(best_steps: dict[str, float], last: dict[str, float]) -> list[Claim]:
    """By the step of the best weights. ``last``: how many steps there were at most."""
    claims = []
    for loss, name in (("C2", "c2"), ("MS", "ms"), ("Triplet", "triplet")):
        theirs = []
        for data_set in ("sop", "inshop"):
            found = {
                each.ccp: each.mean for each in published(table="3.3", loss=name, data_set=data_set, memory=False) or ()
            }
            theirs.append(f"{found[True] / found[False] - 1:+.0%} in {data_set}")
        plain, ccp = best_steps.get(loss, np.nan), best_steps.get(f"{loss} + CCP", np.nan)
        if np.isnan([plain, ccp]).any() or plain == 0:
            share, here = None, "no step was better than the start"
        else:
            cut = max(plain / last[loss], ccp / last[f"{loss} + CCP"]) > 0.9
            share = None if cut else 0.1 <= ccp / plain - 1 <= 0.35
            here = f"best after {plain:.0f} steps plain, {ccp:.0f} with CCP ({ccp / plain - 1:+.0%})"
            here += "; the steps ended before the figures stopped growing" if cut else ""
        paper = f"{loss}: CCP takes 10 % to 35 % more steps (Table 3.3: {', '.join(theirs)})"
        claims.append(Claim(paper, here, verdict([share])))
    return claims


RULES: dict[str, Callable[[Measured], list[Claim]]] = {
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
