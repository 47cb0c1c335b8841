"""Keep the centres of classes apart: a skewed mean of the distances between them is enlarged.

With the distances d_ij of the centres of different classes and their skewed mean M (``lookalike.skewed_means``):

    CentreSpread     "mean"         -M(d_ij), or M(s_ij) of similarities: pushes where the knob leans to
                     "energy"       mean_{i != j} (d_ij + offset)^knob = M^knob, or mean -log(d_ij + offset) for knob 0
                     "energy-sum"   the same, summed over i != j
    CentreCrowding   mean_i 1/gamma log sum_{j != i} exp(gamma (s_ij - delta))

All of them are to be made small. One knob leads from the nearest centres (-inf) through energies (-2, -1, 0) and the
plain mean distance (1) to the farthest centres (inf). SPREADS has settings by name, among them the published

    mhe-0, mhe-1, mhe-2   minimum hyperspherical energy: sum_{i != j} -log d_ij, 1 / d_ij, 1 / d_ij^2
    uniform-face          mean_{i != j} 1 / (1 + d_ij)

``CentreSpread(proxies_of=objective, **SPREADS["mhe-1"])``; ``squared`` puts d^2 in the place of d.

Centres are the proxies of another objective, or running means of the embeddings of each class: those of the classes
in the batch are momentum * old + (1 - momentum) * mean of the batch, and the gradient goes into the mean of the batch.

With ``sample``, so many classes are drawn at each step, and sums over all classes are estimated from these: an energy
without bias, while other means lean only as far as the drawn pairs do. The draw depends on seed and step alone, so all
processes draw the same classes, the ``Gathered`` loss is one loss, and torch's random numbers are left alone. Proxies
get a dense gradient all the same, as large as they are; running means need none.

References: Liu et al., "Learning towards Minimum Hyperspherical Energy", NeurIPS 2018; Duan et al., "UniformFace", CVPR
2019; CentreCrowding is R1 of the skewed-mean regularisers with (gamma, delta) = (sharpness, margin). Their R2, a power
mean of similarities, is not defined for negative ones: it is taken over distances here.
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
from lookalike.objectives.proxies import ProxyObjective
from lookalike.skewed_means import SkewedMean, distances, log_exp_mean, mean_over_others, mean_over_pairs, similarities

SPREADS: dict[str, dict[str, Any]] = {
    "nearest": {"kind": "power", "knob": -inf},
    "farthest": {"kind": "power", "knob": inf},
    "mhe-0": {"kind": "power", "knob": 0.0, "form": "energy-sum"},
    "mhe-1": {"kind": "power", "knob": -1.0, "form": "energy-sum"},
    "mhe-2": {"kind": "power", "knob": -2.0, "form": "energy-sum"},
    "uniform-face": {"kind": "power", "knob": -1.0, "form": "energy", "offset": 1.0},
}
FORMS = ("mean", "energy", "energy-sum")


class Centres(NamedTuple):
    """The centres of classes.

    Attributes:
        vectors: (n, D).
        present: (n,) bool, the rows that are centres; None for all.
        classes: Scalar, the number of classes they stand for.
    """

    vectors: Tensor  # (n, D)
    present: Tensor | None  # (n,) bool: rows that are centres; None: all
    classes: Tensor  # scalar: how many classes these stand for


class CentreObjective(Objective):
    """Where centres come from: a subclass says in ``measure`` what is to be made small.

    classes, dim: for running means. proxies_of: instead of them, an objective that has proxies, or a Parameter of your
    own (classes, D) or (classes, some, D); they must be trained by somebody, this module does not count them among its
    parameters. Several proxies of a class have their mean for a centre.
    sample: how many classes to draw at each step; with running means, those of the batch come on top. None: all.
    normalise: put embeddings and centres on the unit sphere.
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
        proxies_of: ProxyObjective | nn.Parameter | None = None,
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
        chance = np.random.default_rng([self.seed, self.step])
        drawn = chance.choice(self.classes, self.sample, replace=False, shuffle=False)
        return torch.from_numpy(drawn).to(device, non_blocking=True)

    def _proxies(self, owner: ProxyObjective | nn.Parameter, like: Tensor) -> Centres:
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
    """kind, knob: of the skewed mean; the knob may be -inf or inf, and for "k" it is K, of pairs.
    over: "distance", or "similarity", where a large knob leans to the nearest and power means are not defined.
    form: see above; energies are of distances, with a power mean and a knob of at most 0. Those of a knob far below -2
    vary over so many powers of ten that the form "mean", with the same minimum, is the one to train with.
    where: the centres, as ``CentreObjective`` takes them.
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
        **where: Any,
    ) -> None:
        mean = SkewedMean(kind, knob)
        if over not in ("distance", "similarity"):
            raise ValueError(f"over must be distance or similarity, got {over!r}")
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
        if over == "similarity" and kind == "power":
            raise ValueError("a power mean of similarities, which may be negative, is not defined: take kind log-exp")
        if over == "similarity" and (squared or offset):
            raise ValueError(f"squared and offset are for distances, got squared={squared}, offset={offset}")
        if not (isfinite(offset) and offset >= 0):
            raise ValueError(f"offset must be finite and at least 0, got {offset}")
        if form != "mean" and not (kind == "power" and -inf < knob <= 0):
            raise ValueError(f"an {form} needs kind power and a finite knob of at most 0, got {kind}, {knob}")
        own = {"kind": kind, "knob": knob, "over": over, "form": form, "squared": squared, "offset": offset}
        super().__init__(classes, dim, settings=own, **where)
        most = comb(min(self.sample or self.classes, self.classes), 2)
        if kind == "k" and abs(knob) > most:
            raise ValueError(f"the knob of a K-skewed mean must be at most the number of pairs, {most}, got {knob}")
        self.mean = mean
        self.over = over
        self.form = form
        self.squared = squared
        self.offset = offset

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        if self.over == "similarity":
            mean = mean_over_pairs(centres.vectors, similarities, self.mean, present=centres.present)
            return Loss(mean, {"mean": mean.detach()})
        measure = partial(_shifted_distances, squared=self.squared, offset=self.offset)
        mean = mean_over_pairs(centres.vectors, measure, self.mean, present=centres.present)
        parts = {"mean": mean.detach()}
        if self.form == "mean":
            return Loss(-mean, parts)
        none = mean == 0  # pairs: distances have a floor
        mean = mean + none.to(mean.dtype)
        energy = (mean**self.mean.knob if self.mean.knob else -mean.log()).masked_fill(none, 0)
        pairs = centres.classes * (centres.classes - 1)
        return Loss(energy * pairs if self.form == "energy-sum" else energy, parts)


class CentreCrowding(CentreObjective):
    """How near each centre has others around it, by the log-exp of similarities: R1 as printed, over all centres.

    sharpness: above 0, inf for the nearest alone. margin: shifts the value only, R1 having no hinge.
    where: the centres, as ``CentreObjective`` takes them.
    """

    def __init__(
        self,
        classes: int | None = None,
        dim: int | None = None,
        *,
        sharpness: float = 32.0,
        margin: float = 0.0,
        **where: Any,
    ) -> None:
        if not sharpness > 0:
            raise ValueError(f"sharpness must be above 0, got {sharpness}")
        if not isfinite(margin):
            raise ValueError(f"margin must be finite, got {margin}")
        super().__init__(classes, dim, settings={"sharpness": sharpness, "margin": margin}, **where)
        self.mean = SkewedMean("log-exp", sharpness)
        self.margin = margin

    def measure(self, centres: Centres) -> Loss:
        """Compute the loss of the centres."""
        means = mean_over_others(centres.vectors, similarities, self.mean, present=centres.present)
        mean = log_exp_mean(means, 0, weights=centres.present)
        rivals = (centres.classes - 1).clamp(min=1).to(mean.dtype)
        return Loss(mean + rivals.log() / self.mean.knob - self.margin, {"mean": mean.detach()})


def _check_owner(owner: Any) -> None:
    if not isinstance(owner, (ProxyObjective, nn.Parameter)):
        raise TypeError(f"proxies_of must be an objective with proxies, or a Parameter, got {type(owner).__name__}")
    if isinstance(owner, nn.Parameter) and (owner.dim() not in (2, 3) or len(owner) < 2):
        shape = tuple(owner.shape)
        raise ValueError(f"proxies must be (classes, D) or (classes, some, D) of at least two classes, got {shape}")


def _by_class(owner: ProxyObjective | nn.Parameter) -> Tensor:
    """Proxies (classes, some, D)."""
    if isinstance(owner, ProxyObjective):
        return owner.proxies.unflatten(0, (owner.classes, -1))
    return owner.unsqueeze(1) if owner.dim() == 2 else owner


def _shifted_distances(rows: Tensor, columns: Tensor, *, squared: bool, offset: float) -> Tensor:
    found = distances(rows, columns, squared=squared)
    return found + offset if offset else found
