"""Keep the centres of classes apart: a skewed mean of the distances between them is enlarged.

With the distances d_ij of the centres of different classes and their skewed mean M (``lookalike.skewed_means``):

    CentreSpread     "mean"         -M(d_ij), or M(s_ij) of similarities: pushes where the knob leans to
                     "energy"       mean_{i != j} (d_ij + offset)^knob = M^knob, or mean -log(d_ij + offset) for knob 0
                     "energy-sum"   the same, summed over i != j
                     "hinge"        max(0, delta - M(d_ij)), or max(0, M(s_ij) - delta) of similarities
    CentreCrowding   mean_i R1_i, or mean_i max(0, R1_i), R1_i = 1/gamma log sum_{j != i} exp(gamma (s_ij - delta))

All of them are to be made small. One knob leads from the nearest centres (-inf) through energies (-2, -1, 0) and the
plain mean distance (1) to the farthest centres (inf). SPREADS has settings by name, among them the published

    mhe-0, mhe-1, mhe-2   minimum hyperspherical energy: sum_{i != j} -log d_ij, 1 / d_ij, 1 / d_ij^2
    uniform-face          mean_{i != j} 1 / (1 + d_ij)
    r2                    (mean_{i != j} max(0, s_ij)^8)^(1/8), R2 of the skewed-mean regularisers

``CentreSpread(proxies_of=objective, **SPREADS["mhe-1"])``; ``squared`` puts d^2 in the place of d.

Centres are the proxies of another objective, or running means of the embeddings of each class: those of the classes
in the batch are momentum * old + (1 - momentum) * mean of the batch, and the gradient goes into the mean of the batch.

With ``sample``, so many classes are drawn at each step, and sums over all classes are estimated from these: an energy
without bias, while other means lean only as far as the drawn pairs do. The draw depends on seed and step alone, so all
processes draw the same classes, the ``Gathered`` loss is one loss, and torch's random numbers are left alone. Proxies
get a dense gradient all the same, as large as they are; running means need none.

References: Liu et al., "Learning towards Minimum Hyperspherical Energy", NeurIPS 2018; Duan et al., "UniformFace", CVPR
2019; CentreCrowding is R1 of the skewed-mean regularisers with (gamma, delta) = (sharpness, margin). Their R2, a power
mean of similarities, is not defined for negative ones, which count as 0 here. The hinges are their constraints (9),
(10) and v < delta: without a hinge, delta has no gradient.
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
            Parameter (classes, D) or (classes, some, D). They are not parameters of this module. The centre of several
            proxies is their mean.
        sample: Number of classes drawn at each step; running means add those of the batch. None: all.
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
        self.step = 0  # not a buffer: the draw would wait for the device
        self._owner = (proxies_of,)  # in a tuple, or torch would count the proxies among the parameters of both
        if classes is not None and dim is not None:
            self.register_buffer("means", torch.zeros(classes, dim))
            self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))  # of the pictures seen

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None = None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        del attributes, pictures  # classes are told apart by vectors
        owner = self._owner[0]
        centres = self._running_means(embeddings, labels) if owner is None else self._proxies(owner, embeddings)
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
        """Different classes, by seed and step alone and in O(sample); None for all."""
        if self.sample is None or self.sample >= self.classes:
            return None
        rng = np.random.default_rng([self.seed, self.step])
        drawn = rng.choice(self.classes, self.sample, replace=False, shuffle=False)
        return torch.from_numpy(drawn).to(device, non_blocking=True)

    def _proxies(self, owner: ProxyOwner, like: Tensor) -> Centres:
        proxies = _by_class(owner)
        drawn = self._draw(proxies.device)
        proxies = (proxies if drawn is None else proxies[drawn]).to(like.dtype)
        if proxies.shape[1] > 1 and self.normalise:
            proxies = normalize(proxies, dim=2)
        return Centres(proxies.mean(1), None, torch.full((), self.classes, device=proxies.device))

    def _running_means(self, embeddings: Tensor, labels: Tensor) -> Centres:
        """The batch's classes, one row for each picture of which the first of a class is present, then the others."""
        if embeddings.shape[1] != self.means.shape[1]:
            sizes = f"{self.means.shape[1]} dimensions as the centres, got {embeddings.shape[1]}"
            raise ValueError(f"embeddings must have {sizes}")
        check_labels(labels, self.classes)
        labels = labels.long()
        vectors = normalize(embeddings) if self.normalise else embeddings
        same = labels.unsqueeze(1) == labels
        rank = torch.arange(len(labels), device=labels.device)
        first = torch.where(same, rank, len(labels)).amin(1)
        new = same.to(vectors.dtype) @ vectors / same.sum(1, keepdim=True)
        old, known = self.means[labels].to(vectors.dtype), (self.counts[labels] > 0).unsqueeze(1)
        new = torch.where(known, self.momentum * old + (1 - self.momentum) * new, new)

        drawn = self._draw(labels.device)
        others = torch.arange(self.classes, device=labels.device) if drawn is None else drawn
        elsewhere = ~torch.isin(others, labels) & (self.counts[others] > 0)
        centres = torch.cat([new, self.means[others].to(vectors.dtype)])
        present = torch.cat([first == rank, elsewhere])
        seen = (self.counts > 0).index_fill(0, labels, True).sum()
        if self.training:
            self.means[labels] = new.detach()[first].to(self.means.dtype)
            self.counts.index_add_(0, labels, torch.ones_like(labels))
        return Centres(centres, present, seen)


class CentreSpread(CentreObjective):
    """A skewed mean of the distances, or similarities, between centres.

    Args:
        classes: Number of classes, for running means.
        dim: D, for running means.
        kind: "power", "log-exp" or "k", see ``lookalike.skewed_means``.
        knob: Of the mean; may be -inf or inf. For "k" it is K, a number of pairs.
        over: "distance", or "similarity", where a large knob leans to the nearest. Power means are of max(0, s), with a
            knob above 0.
        form: See the top of this file. Energies are of distances, with a power mean and a knob of at most 0. Far below
            -2 they vary over many powers of ten: train with the form "mean", which has the same minimum.
        squared: Take d^2 instead of d.
        offset: Is added to the distances.
        delta: For the form "hinge", the mean from which on nothing is pushed.
        **where: The centres, as ``CentreObjective`` takes them.
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
        most = comb(min(self.sample or self.classes, self.classes), 2)
        if kind == "k" and abs(knob) > most:
            raise ValueError(f"the knob of a K-skewed mean must be at most the number of pairs, {most}, got {knob}")
        self.mean = mean
        self.over = over
        self.form = form
        self.squared = squared
        self.offset = offset
        self.delta = delta

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        measure: Measure = partial(_shifted_distances, squared=self.squared, offset=self.offset)
        if self.over == "similarity":
            measure = similarities if self.mean.kind != "power" else _positive_similarities
        mean = mean_over_pairs(centres.vectors, measure, self.mean, present=centres.present)
        parts = {"mean": mean.detach()}
        sign = 1.0 if self.over == "similarity" else -1.0
        if self.delta is not None:
            pairs = (centres.classes > 1).to(mean.dtype)  # a single centre has no mean
            return Loss((sign * (mean - self.delta)).clamp(min=0) * pairs, parts)
        if self.form == "mean":
            return Loss(sign * mean, parts)
        none = mean == 0  # pairs: distances have a floor
        mean = mean + none.to(mean.dtype)
        energy = (mean**self.mean.knob if self.mean.knob else -mean.log()).masked_fill(none, 0)
        pairs = centres.classes * (centres.classes - 1)
        return Loss(energy * pairs if self.form == "energy-sum" else energy, parts)


class CentreCrowding(CentreObjective):
    """How close other centres are to each centre, by the log-exp of similarities: R1, the mean over all centres.

    Args:
        classes: Number of classes, for running means.
        dim: D, for running means.
        sharpness: gamma, above 0; inf for the nearest centre alone.
        margin: delta. Without the hinge it only shifts the value.
        hinge: Push a centre only while its R1 is above 0.
        **where: The centres, as ``CentreObjective`` takes them.
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
        rivals = (centres.classes - 1).clamp(min=1).to(means.dtype)
        shift = rivals.log() / self.mean.knob - self.margin
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
    """Proxies (classes, some, D)."""
    if not isinstance(owner, nn.Parameter):
        return owner.proxies.unflatten(0, (owner.classes, -1))
    return owner.unsqueeze(1) if owner.dim() == 2 else owner


def _positive_similarities(rows: Tensor, columns: Tensor) -> Tensor:
    return similarities(rows, columns).clamp(min=0)


def _shifted_distances(rows: Tensor, columns: Tensor, *, squared: bool, offset: float) -> Tensor:
    found = distances(rows, columns, squared=squared)
    return found + offset if offset else found
