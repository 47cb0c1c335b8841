"""Regularisers that keep class centres apart: they enlarge a skewed mean of the distances between centres.

With the distances d_ij of the centres of different classes and their skewed mean M (``lookalike.skewed_means``):

    CentreSpread     "mean"         -M(d_ij), or M(s_ij) of similarities
                     "energy"       mean_{i != j} (d_ij + offset)^knob = M^knob, or mean -log(d_ij + offset) for knob 0
                     "energy-sum"   the same, summed over i != j
                     "hinge"        max(0, delta - M(d_ij)), or max(0, M(s_ij) - delta) of similarities
    CentreCrowding   mean_i R1_i, or mean_i max(0, R1_i), R1_i = 1/gamma log sum_{j != i} exp(gamma (s_ij - delta))

All of them are minimised. The knob selects which pairs are pushed: the nearest (-inf), energies (-2, -1, 0), all alike
(1, the mean distance), or the farthest (inf). SPREADS has settings by name. Published ones are

    mhe-0, mhe-1, mhe-2   minimum hyperspherical energy: sum_{i != j} -log d_ij, 1 / d_ij, 1 / d_ij^2
    uniform-face          mean_{i != j} 1 / (1 + d_ij)
    r2                    (mean_{i != j} max(0, s_ij)^8)^(1/8), R2 of the skewed-mean regularisers

Example: ``CentreSpread(proxies_of=objective, **SPREADS["mhe-1"])``. With ``squared``, d^2 replaces d.

Centres are the proxies of another objective, or running means of the embeddings of each class. The centre of a class in
the batch is momentum * old + (1 - momentum) * mean of the batch; the gradient flows into the mean of the batch.

With ``sample``, this many classes are drawn at each step. Sums over all classes are estimated from them: energies
without bias, other means as if there were only the drawn pairs. The draw depends on seed and step alone. So all
processes draw the same classes, and torch's random state does not change. Proxies still get a dense gradient of their
own size; running means need none.

References: Liu et al., "Learning towards Minimum Hyperspherical Energy", NeurIPS 2018; Duan et al., "UniformFace", CVPR
2019. CentreCrowding is R1 of the skewed-mean regularisers with (gamma, delta) = (sharpness, margin). Their R2, a power
mean of similarities, is not defined for negative similarities, which count as 0 here. The hinges are their constraints
(9), (10) and v < delta. Without a hinge, delta has no gradient.
"""

from functools import partial
from math import comb, inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lookalike._util.checks import check_count
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.objectives.between_proxies import BetweenProxies
from lookalike.objectives.proxies import ProxyObjective
from lookalike.skewed_means import (
    Measure,
    SkewedMean,
    distances,
    log_exp_mean,
    mean_over_others,
    mean_over_pairs,
    similarities,
)

SPREADS: dict[str, dict[str, Any]] = {
    "nearest": {"kind": "power", "knob": -inf},
    "farthest": {"kind": "power", "knob": inf},
    "mhe-0": {"kind": "power", "knob": 0.0, "form": "energy-sum"},
    "mhe-1": {"kind": "power", "knob": -1.0, "form": "energy-sum"},
    "mhe-2": {"kind": "power", "knob": -2.0, "form": "energy-sum"},
    "r2": {"kind": "power", "knob": 8.0, "over": "similarity"},
    "uniform-face": {"kind": "power", "knob": -1.0, "form": "energy", "offset": 1.0},
}
ProxyOwner = ProxyObjective | BetweenProxies | nn.Parameter
FORMS = ("mean", "energy", "energy-sum", "hinge")


class Centres(NamedTuple):
    """The centres of classes.

    Attributes:
        vectors: (n, D).
        present: (n,) bool, the rows that are centres; None for all.
        classes: Scalar, the number of classes they stand for.
    """

    vectors: Tensor
    present: Tensor | None
    classes: Tensor


class CentreObjective(Objective):
    """Provides the centres of classes; subclasses define the loss in ``measure``.

    Args:
        classes: Number of classes, for running means.
        dim: D, for running means.
        settings: Settings of the subclass.
        proxies_of: Instead of running means, the proxies of this proxy loss or of CCP's ``BetweenProxies``, or a
            Parameter (classes, D) or (classes, some, D). They are not parameters of this module. A class with several
            proxies has their mean as centre.
        sample: Number of classes drawn at each step; running means add the classes of the batch. None: all.
        momentum: Of the running means.
        normalise: Project embeddings and centres onto the unit sphere.
        seed: Seed of the draws.
    """

    hints = Hints(needs_classes=True)
    means: Tensor
    counts: Tensor

    def __init__(
        self,
        classes: int | None = None,
        dim: int | None = None,
        *,
        settings: dict[str, Any],
        proxies_of: ProxyOwner | None = None,
        sample: int | None = None,
        momentum: float = 0.9,
        normalise: bool = True,
        seed: int = 0,
    ) -> None:
        if proxies_of is not None:
            _check_owner(proxies_of)
            if classes is not None or dim is not None:
                raise ValueError(f"with proxies_of, classes and dim must not be given, got {classes}, {dim}")
            settings = {**settings, "proxies_of": type(proxies_of).__name__}
        else:
            check_count("classes", classes, 2)
            check_count("dim", dim)
            settings = {**settings, "classes": classes, "dim": dim}
        if sample is not None:
            check_count("sample", sample, 2)
        check_count("seed", seed, 0)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {momentum}")
        super().__init__(**settings, sample=sample, momentum=momentum, normalise=normalise, seed=seed)
        self.sample = sample
        self.momentum = momentum
        self.normalise = normalise
        self.seed = seed
        self.classes: int = self.settings["classes"] if proxies_of is None else len(_by_class(proxies_of))
        self.step = 0  # no buffer, because the draw would wait for the device
        self._owner = (proxies_of,)  # a tuple, so that torch does not register the proxies twice
        if classes is not None and dim is not None:
            self.register_buffer("means", torch.zeros(classes, dim))
            self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))  # of the pictures seen

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None = None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes, pictures  # not used
        owner = self._owner[0]
        if owner is None:
            centres = self._running_means(embeddings, labels)
        else:
            centres = self._proxies(owner, embeddings)
        self.step += self.training
        if self.normalise:
            centres = centres._replace(vectors=normalize(centres.vectors))
        return self.measure(centres)

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        raise NotImplementedError

    def get_extra_state(self) -> Tensor:
        """Return the state that is not a parameter, for checkpoints."""
        return torch.tensor(self.step)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the state of ``get_extra_state``."""
        self.step = int(state)

    def _draw(self, device: torch.device) -> Tensor | None:
        """Draw different classes in O(sample), from seed and step alone; None for all classes."""
        if self.sample is None or self.sample >= self.classes:
            return None
        rng = np.random.default_rng([self.seed, self.step])
        drawn = rng.choice(self.classes, self.sample, replace=False, shuffle=False)
        return torch.from_numpy(drawn).to(device, non_blocking=True)

    def _proxies(self, owner: ProxyOwner, embeddings: Tensor) -> Centres:
        proxies = _by_class(owner)
        drawn = self._draw(proxies.device)
        if drawn is not None:
            proxies = proxies[drawn]
        proxies = proxies.to(embeddings.dtype)
        if proxies.shape[1] > 1 and self.normalise:
            proxies = normalize(proxies, dim=2)
        return Centres(proxies.mean(1), None, torch.full((), self.classes, device=proxies.device))

    def _running_means(self, embeddings: Tensor, labels: Tensor) -> Centres:
        """Centres of the classes in the batch, then of other classes.

        There is one row for each picture of the batch; only the first row of each class is present.
        """
        if embeddings.shape[1] != self.means.shape[1]:
            dim = self.means.shape[1]
            raise ValueError(f"embeddings must have {dim} dimensions as the centres, got {embeddings.shape[1]}")
        check_labels(labels, self.classes)
        labels = labels.long()
        vectors = embeddings
        if self.normalise:
            vectors = normalize(embeddings)

        # Classes of the batch
        same_class = labels.unsqueeze(1) == labels
        position = torch.arange(len(labels), device=labels.device)
        first_of_class = torch.where(same_class, position, len(labels)).amin(1)
        batch_means = same_class.to(vectors.dtype) @ vectors / same_class.sum(1, keepdim=True)
        old_means = self.means[labels].to(vectors.dtype)
        was_seen = (self.counts[labels] > 0).unsqueeze(1)
        updated = self.momentum * old_means + (1 - self.momentum) * batch_means
        new_means = torch.where(was_seen, updated, batch_means)

        # Other classes
        others = self._draw(labels.device)
        if others is None:
            others = torch.arange(self.classes, device=labels.device)
        is_other = ~torch.isin(others, labels) & (self.counts[others] > 0)

        centres = torch.cat([new_means, self.means[others].to(vectors.dtype)])
        present = torch.cat([first_of_class == position, is_other])
        seen_classes = (self.counts > 0).index_fill(0, labels, True).sum()
        if self.training:
            self.means[labels] = new_means.detach()[first_of_class].to(self.means.dtype)
            self.counts.index_add_(0, labels, torch.ones_like(labels))
        return Centres(centres, present, seen_classes)


class CentreSpread(CentreObjective):
    """A skewed mean of the distances, or similarities, between centres.

    Args:
        classes: Number of classes, for running means.
        dim: D, for running means.
        kind: "power", "log-exp" or "k", see ``lookalike.skewed_means``.
        knob: Parameter of the mean; may be -inf or inf. For "k" it is K, a number of pairs.
        over: "distance", or "similarity", where a large knob selects the nearest pairs. Power means of similarities are
            means of max(0, s) and need a knob above 0.
        form: See the top of this file. Energies need distances, a power mean and a knob of at most 0. Far below -2 they
            vary over many powers of ten; the form "mean" has the same minimum and trains better.
        squared: Use d^2 instead of d.
        offset: Added to the distances.
        delta: Target of the mean with the form "hinge"; beyond it, nothing is pushed.
        **where: Arguments of ``CentreObjective`` that choose the centres.
    """

    def __init__(
        self,
        classes: int | None = None,
        dim: int | None = None,
        *,
        kind: str = "power",
        knob: float = -1.0,
        over: str = "distance",
        form: str = "mean",
        squared: bool = False,
        offset: float = 0.0,
        delta: float | None = None,
        **where: Any,
    ) -> None:
        mean = SkewedMean(kind, knob)
        if over not in ("distance", "similarity"):
            raise ValueError(f"over must be distance or similarity, got {over!r}")
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
        if over == "similarity" and kind == "power" and not knob > 0:
            raise ValueError(f"a power mean of similarities, which may be 0, needs a knob above 0, got {knob}")
        if over == "similarity" and (squared or offset):
            raise ValueError(f"squared and offset are for distances, got squared={squared}, offset={offset}")
        if not (isfinite(offset) and offset >= 0):
            raise ValueError(f"offset must be finite and at least 0, got {offset}")
        if (form == "hinge") != (delta is not None):
            raise ValueError(f"delta belongs to the form hinge, got delta={delta} with the form {form}")
        if delta is not None and not isfinite(delta):
            raise ValueError(f"delta must be finite, got {delta}")
        if form.startswith("energy") and not (kind == "power" and -inf < knob <= 0):
            raise ValueError(f"an {form} needs kind power and a finite knob of at most 0, got {kind}, {knob}")
        settings = {"kind": kind, "knob": knob, "over": over, "form": form, "squared": squared, "offset": offset}
        super().__init__(classes, dim, settings={**settings, "delta": delta}, **where)
        drawn_classes = min(self.sample or self.classes, self.classes)
        pair_count = comb(drawn_classes, 2)
        if kind == "k" and abs(knob) > pair_count:
            raise ValueError(
                f"the knob of a K-skewed mean must be at most the number of pairs, {pair_count}, got {knob}"
            )
        self.mean = mean
        self.over = over
        self.form = form
        self.squared = squared
        self.offset = offset
        self.delta = delta

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        mean = mean_over_pairs(centres.vectors, self._pair_value(), self.mean, present=centres.present)
        parts = {"mean": mean.detach()}
        sign = -1.0  # enlarge distances
        if self.over == "similarity":
            sign = 1.0
        if self.delta is not None:
            has_pairs = (centres.classes > 1).to(mean.dtype)  # a single centre has no mean
            return Loss((sign * (mean - self.delta)).clamp(min=0) * has_pairs, parts)
        if self.form == "mean":
            return Loss(sign * mean, parts)
        energy = self._energy(mean)
        if self.form == "energy-sum":
            energy = energy * (centres.classes * (centres.classes - 1))
        return Loss(energy, parts)

    def _pair_value(self) -> Measure:
        """The function of two sets of centres whose values are averaged."""
        if self.over == "distance":
            return partial(_shifted_distances, squared=self.squared, offset=self.offset)
        if self.mean.kind == "power":
            return _positive_similarities
        return similarities

    def _energy(self, mean: Tensor) -> Tensor:
        """The energy of a pair, from the power mean of the distances; 0 if there are no pairs."""
        has_no_pairs = mean == 0  # distances have a floor above 0
        mean = mean + has_no_pairs.to(mean.dtype)
        if self.mean.knob:
            energy = mean**self.mean.knob
        else:
            energy = -mean.log()
        return energy.masked_fill(has_no_pairs, 0)


class CentreCrowding(CentreObjective):
    """How close other centres are to each centre, by the log-exp of similarities: R1, the mean over all centres.

    Args:
        classes: Number of classes, for running means.
        dim: D, for running means.
        sharpness: gamma, above 0; inf selects the nearest centre alone.
        margin: delta. Without the hinge it only shifts the value.
        hinge: Push a centre only while its R1 is above 0.
        **where: Arguments of ``CentreObjective`` that choose the centres.
    """

    def __init__(
        self,
        classes: int | None = None,
        dim: int | None = None,
        *,
        sharpness: float = 32.0,
        margin: float = 0.0,
        hinge: bool = False,
        **where: Any,
    ) -> None:
        if not sharpness > 0:
            raise ValueError(f"sharpness must be above 0, got {sharpness}")
        if not isfinite(margin):
            raise ValueError(f"margin must be finite, got {margin}")
        super().__init__(classes, dim, settings={"sharpness": sharpness, "margin": margin, "hinge": hinge}, **where)
        self.mean = SkewedMean("log-exp", sharpness)
        self.margin = margin
        self.hinge = hinge

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        means = mean_over_others(centres.vectors, similarities, self.mean, present=centres.present)
        other_classes = (centres.classes - 1).clamp(min=1).to(means.dtype)
        shift = other_classes.log() / self.mean.knob - self.margin  # from the mean to the sum over others, and delta
        mean = log_exp_mean(means, 0, weights=centres.present)
        if self.hinge:
            pushed = (means + shift).clamp(min=0)
            return Loss(log_exp_mean(pushed, 0, weights=centres.present), {"mean": mean.detach()})
        return Loss(mean + shift, {"mean": mean.detach()})


def _check_owner(owner: Any) -> None:
    if not isinstance(owner, ProxyOwner):
        raise TypeError(f"proxies_of must be an objective with proxies, or a Parameter, got {type(owner).__name__}")
    if isinstance(owner, nn.Parameter) and (owner.dim() not in (2, 3) or len(owner) < 2):
        shape = tuple(owner.shape)
        raise ValueError(f"proxies must be (classes, D) or (classes, some, D) of at least two classes, got {shape}")


def _by_class(owner: ProxyOwner) -> Tensor:
    """The proxies of an owner (classes, proxies per class, D)."""
    if not isinstance(owner, nn.Parameter):
        return owner.proxies.unflatten(0, (owner.classes, -1))
    if owner.dim() == 2:
        return owner.unsqueeze(1)
    return owner


def _positive_similarities(rows: Tensor, columns: Tensor) -> Tensor:
    return similarities(rows, columns).clamp(min=0)


def _shifted_distances(rows: Tensor, columns: Tensor, *, squared: bool, offset: float) -> Tensor:
    values = distances(rows, columns, squared=squared)
    if offset:
        return values + offset
    return values
