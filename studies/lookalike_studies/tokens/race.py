"""Poolings of trainable tokens: nothing but a few points in the plane that are learnt through the pooling.

A sample of class c is a bag of tokens: a share ~ N(0.5, 0.1) of them are drawn, with replacement, among the tokens of
c, the others among background tokens that all classes have in common. The tokens are the only weights beside the
prototypes of generalized sum pooling, so whatever the pooling lets through can be seen.

Many runs train at once, as one tensor: they are so small that everything else would be waiting. Runs with the same seed
start from the same tokens and see the same samples. A bag repeats few tokens, so closeness to the prototypes,

    l_t = logsumexp_i(-sharpness ||clip(w_i) - clip(token_t)||),

is computed once for each token and looked up; the rest is ``partial_transport`` with -l/sharpness for its cost.

Reference: section 5.3.1 of Gürbüz's thesis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike import objectives
from lookalike.geometry import clip, greedy_k_centre
from lookalike.pooling.transport import partial_transport
from lookalike.retrieval.metrics import retrieval_metrics

JITTER = 1e-3  # of prototypes that start at tokens: at a distance of 0 there is no gradient


@dataclass(frozen=True)
class Bags:
    """How samples are made up."""

    classes: int
    tokens: int  # of a class
    background: int  # tokens that all classes have in common
    size: int  # tokens in a sample
    share: float  # of class tokens in a sample: its mean
    spread: float  # and deviation

    @property
    def table(self) -> int:
        """How many tokens there are: those of class 0, of class 1, ..., then the background's."""
        return self.classes * self.tokens + self.background

    def labels(self, per_class: int) -> Tensor:
        return torch.arange(self.classes).repeat_interleave(per_class)

    def draw(self, per_class: int, chance: np.random.Generator) -> "Samples":
        labels = self.labels(per_class).numpy()
        shares = chance.normal(self.share, self.spread, len(labels))
        counts = (shares * self.size).round().clip(0, self.size)
        own = chance.integers(self.tokens, size=(len(labels), self.size)) + self.tokens * labels[:, None]
        others = chance.integers(self.background, size=own.shape) + self.tokens * self.classes
        is_own = np.arange(self.size) < counts[:, None]
        return Samples(*map(torch.from_numpy, (np.where(is_own, own, others), labels, is_own)))


class Samples(NamedTuple):
    bags: Tensor  # (B, n) which tokens
    labels: Tensor  # (B,)
    is_own: Tensor  # (B, n) bool: a token of the class, not of the background


@dataclass(frozen=True)
class Run:
    """``keep`` = 1 is average pooling, and has no prototypes; else it is generalized sum pooling."""

    margin: float  # how far apart the contrastive loss (C2) wants classes
    seed: int
    keep: float = 1.0
    sharpness: float = 1.0
    prototypes: int = 0


@dataclass(frozen=True)
class Training:
    rate: float
    prototype_rate: float
    per_class: int  # samples of each class in a batch
    epoch: int  # steps
    epochs: int
    patience: int  # epochs
    bound: float  # of the coordinates of a token
    validation: int  # samples of each class


class Trained(NamedTuple):
    curve: list[float]  # MAP@R on validation samples, before training and after every epoch until it stopped
    best: float
    first_tokens: NDArray[np.float32]  # (table, 2)
    tokens: NDArray[np.float32]  # at the best epoch
    first_prototypes: NDArray[np.float32]  # (m, 2)
    prototypes: NDArray[np.float32]


class Stack(nn.Module):
    """The tokens (R, table, 2) and prototypes (R, m, 2) of R runs, all with generalized sum pooling or none."""

    def __init__(self, runs: Sequence[Run], tokens: Tensor, prototypes: Sequence[Tensor]) -> None:
        super().__init__()
        self.runs = list(runs)
        self.tokens = nn.Parameter(tokens)
        self.averages = all(run.keep == 1 for run in runs)
        most = max(len(each) for each in prototypes)
        padded = torch.zeros(len(runs), most, 2)
        absent = torch.ones(len(runs), most, dtype=torch.bool)
        for i, each in enumerate(prototypes):
            padded[i, : len(each)], absent[i, : len(each)] = each, False
        self.prototypes = nn.Parameter(padded, requires_grad=not self.averages)
        self.register_buffer("absent", absent)
        self.register_buffer("keep", torch.tensor([[run.keep] for run in runs]))
        self.register_buffer("sharpness", torch.tensor([[run.sharpness] for run in runs]))

    absent: Tensor
    keep: Tensor
    sharpness: Tensor

    def forward(self, bags: Tensor) -> tuple[Tensor, Tensor]:
        """Which tokens (R, B, n) -> vectors (R, B, 2) and weights (R, B, n)."""
        flat = bags.flatten(1)
        features = self.tokens.gather(1, flat.unsqueeze(-1).expand(-1, -1, 2)).view(*bags.shape, 2)
        if self.averages:
            return features.mean(2), torch.full(bags.shape, 1 / bags.shape[-1])
        distances = torch.cdist(clip(self.tokens), clip(self.prototypes), compute_mode="donot_use_mm_for_euclid_dist")
        logits = (-self.sharpness.unsqueeze(-1) * distances).masked_fill(self.absent.unsqueeze(1), -torch.inf)
        softest = -logits.logsumexp(-1) / self.sharpness
        cost = softest.gather(1, flat).view(bags.shape)
        weights = partial_transport(cost.unsqueeze(2), self.keep, self.sharpness).weights
        return (weights.unsqueeze(-1) * features).sum(2), weights


def train(runs: Sequence[Run], bags: Bags, training: Training, tick: Callable[[int], None]) -> list[Trained]:
    """Train the runs at once; each stops by itself when validation has not improved for ``patience`` epochs."""
    chances = {seed: np.random.default_rng((seed, 0)) for seed in {run.seed for run in runs}}
    validation = {seed: bags.draw(training.validation, np.random.default_rng((seed, 1))) for seed in chances}
    stack = start(runs, bags, training.bound)
    losses = {margin: contrastive(margin) for margin in {run.margin for run in runs}}
    which = {margin: [i for i, run in enumerate(runs) if run.margin == margin] for margin in losses}
    groups = [{"params": [stack.tokens], "lr": training.rate}]
    groups += [] if stack.averages else [{"params": [stack.prototypes], "lr": training.prototype_rate}]
    optimiser = torch.optim.Adam(groups)
    checked = torch.stack([validation[run.seed].bags for run in runs])
    checked_labels, labels = (bags.labels(count) for count in (training.validation, training.per_class))
    first = snapshot(stack)
    curves: list[list[float]] = [[] for _ in runs]
    best = list(first)
    waited = [0] * len(runs)
    for epoch in range(training.epochs + 1):
        for _ in range(training.epoch if epoch else 0):
            drawn = {seed: bags.draw(training.per_class, chance) for seed, chance in chances.items()}
            vectors, _ = stack(torch.stack([drawn[run.seed].bags for run in runs]))
            values = [losses[margin](vectors[rows], labels) for margin, rows in which.items()]
            optimiser.zero_grad(set_to_none=True)
            torch.cat(values).sum().backward()  # a sum: each run has parameters of its own
            optimiser.step()
            with torch.no_grad():
                stack.tokens.clamp_(-training.bound, training.bound)
            tick(len(runs))
        with torch.no_grad():
            vectors, _ = stack(checked)
        now = snapshot(stack)
        for i, curve in enumerate(curves):
            if waited[i] >= training.patience:
                continue
            found = retrieval_metrics(vectors[i], checked_labels, distance="l2")["MAP@R"]
            if not curve or found > max(curve):
                best[i], waited[i] = now[i], 0
            else:
                waited[i] += 1
            curve.append(found)
        if all(each >= training.patience for each in waited):
            break
    ends = zip(curves, first, best, strict=True)
    return [Trained(curve, max(curve), then[0], last[0], then[1], last[1]) for curve, then, last in ends]


def contrastive(margin: float) -> Callable[[Tensor, Tensor], Tensor]:
    """C2 on plain distances, for many runs at once: vectors (R, B, 2), labels (B,) -> (R,)."""
    objective = objectives.create("c2", positive_margin=0.0, negative_margin=margin, normalise=False)
    return torch.vmap(lambda vectors, labels: objective(vectors, labels).value, in_dims=(0, None))


def start(runs: Sequence[Run], bags: Bags, bound: float) -> Stack:
    """Tokens all over the square; prototypes at tokens, chosen by greedy k-centre among all of them."""
    tokens, prototypes = [], []
    for run in runs:
        chance = np.random.default_rng((run.seed, 2))
        own = torch.from_numpy(chance.uniform(-bound, bound, (bags.table, 2)).astype(np.float32))
        near = own + torch.from_numpy(chance.normal(0, JITTER, (bags.table, 2)).astype(np.float32))
        tokens.append(own)
        prototypes.append(near[greedy_k_centre(near, run.prototypes).indices] if run.prototypes else near[:0])
    return Stack(runs, torch.stack(tokens), prototypes)


def snapshot(stack: Stack) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Of each run its tokens and prototypes."""
    tokens, prototypes = stack.tokens.detach().clone(), stack.prototypes.detach().clone()
    return [(tokens[i].numpy(), prototypes[i][~stack.absent[i]].numpy()) for i in range(len(stack.runs))]


@torch.no_grad()
def pool(
    run: Run, tokens: NDArray[np.float32], prototypes: NDArray[np.float32], samples: Samples
) -> tuple[Tensor, Tensor]:
    """The vectors (B, 2) of samples, and the weights (B, n) of their tokens."""
    stack = Stack([run], torch.from_numpy(tokens)[None], [torch.from_numpy(prototypes)])
    vectors, weights = stack(samples.bags[None])
    return vectors[0], weights[0]
