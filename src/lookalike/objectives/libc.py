"""LIBC, learning intra-batch connections: pictures of a batch exchange messages before they are classified.

With x the embeddings before normalisation, H heads in d dimensions, and i, j over the whole batch:

    encoder loss   smoothed cross-entropy of (W x + b) / temperature
    input          h = linear(x / ||x||)
    attention      a_ij = exp(s_ij) / (1 + sum_i exp(s_ij)),   s_ij = <q_j, k_i> / sqrt(d / H)      for each head
    block          h <- norm(h + linear(concat_heads sum_i a_ij v_i)),   h <- norm(h + W2 relu(W1 h)),   W1: d -> 4 d
    message loss   smoothed cross-entropy of U batchnorm(h) / temperature

The 1 in the denominator is an extra logit of zero, so the attention of a picture may sum to less than 1. Dropout
follows the attention, the ReLU and both linear layers of a block. The value is the sum of both losses. At test the
encoder alone is used, or messages pass between k-reciprocal neighbours; see ``MessagePassing.refine``.

Inside ``Gathered``, messages pass over the joined batch. Every rank must then drop the same activations. So dropout has
its own random numbers, which depend on the seed and on the number of batches seen. That number is saved.

Reference: Seidenschwarz, Elezi and Leal-Taixé, "Learning Intra-Batch Connections for Deep Metric Learning", ICML 2021.
"""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from lookalike._util.checks import check_count, check_range
from lookalike._util.files import replacing
from lookalike.geometry import clip
from lookalike.models.weight_files import check_weights, read_weights, save_weights
from lookalike.objectives.base import Hints, Loss, Objective, check_labels
from lookalike.retrieval.rerank import nearest_others

WIDTH = 4  # hidden size of a block's two-layer network, relative to d
NEIGHBOURS = 7
MESSAGES = "messages.safetensors"  # in the folder of a run
CHUNK = 256  # pictures that are refined at a time


class SharedDropout(nn.Module):
    """Dropout with random numbers from a generator that several layers share.

    Args:
        share: Share of activations that are dropped in training.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop entries of values of any shape and scale the others up."""
        if not self.training or self.share == 0:
            return values
        noise = torch.rand(values.shape, generator=self.generator, device=values.device, dtype=torch.float32)
        return values * (noise >= self.share) / (1 - self.share)


class MessageBlock(nn.Module):
    """One round of messages: multi-head attention with an extra zero logit, then a two-layer network.

    Args:
        dim: Size d of the features.
        heads: Number of heads; a divisor of ``dim``.
        dropout: Shared by all blocks.
    """

    def __init__(self, dim: int, heads: int, dropout: SharedDropout) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.first_norm = nn.LayerNorm(dim)
        self.second_norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, WIDTH * dim)
        self.narrow = nn.Linear(WIDTH * dim, dim)
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor, present: Tensor | None = None) -> Tensor:
        """Pass messages between all features.

        Args:
            features: (..., n, d).
            present: (..., n) bool, False for senders that do not exist; None: all exist.

        Returns:
            Features (..., n, d).
        """
        messages = self.out(self._attend(features, present))
        features = self.first_norm(features + self.dropout(messages))
        hidden = self.dropout(self.widen(features).relu())
        return self.second_norm(features + self.dropout(self.narrow(hidden)))

    def _attend(self, features: Tensor, present: Tensor | None) -> Tensor:
        queries = self._split(self.query(features))
        keys = self._split(self.key(features))
        values = self._split(self.value(features))
        logits = queries @ keys.mT / sqrt(queries.shape[-1])  # (..., H, receivers, senders)
        if present is not None:
            logits = logits.masked_fill(~present[..., None, None, :], -torch.inf)
        zero_logit = torch.zeros_like(logits[..., :1])
        attention = torch.cat([logits, zero_logit], -1).softmax(-1)[..., :-1]
        received = self.dropout(attention) @ values
        return received.transpose(-2, -3).flatten(-2)

    def _split(self, features: Tensor) -> Tensor:
        """(..., n, d) -> (..., H, n, d / H)"""
        return features.unflatten(-1, (self.heads, -1)).transpose(-2, -3)


class MessagePassing(nn.Module):
    """The message-passing network between embeddings: an input layer and blocks of attention.

    Args:
        dim: Size d of the embeddings.
        blocks: Number of rounds of messages.
        heads: Number of attention heads; a divisor of ``dim``.
        concatenate: Return the outputs of all blocks side by side instead of the last one.
        dropout: Share of activations that are dropped in training.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self, dim: int, blocks: int = 1, heads: int = 2, concatenate: bool = False, dropout: float = 0.1
    ) -> None:
        super().__init__()
        check_count("dim", dim)
        check_count("blocks", blocks)
        check_count("heads", heads)
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads {heads}, got {dim}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.settings = {"dim": dim, "blocks": blocks, "heads": heads, "concatenate": concatenate, "dropout": dropout}
        self.concatenate = concatenate
        self.out_dim = dim * blocks if concatenate else dim
        self.dropout = SharedDropout(dropout)
        self.input = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList([MessageBlock(dim, heads, self.dropout) for _ in range(blocks)])

    def forward(self, embeddings: Tensor, present: Tensor | None = None) -> Tensor:
        """Pass messages between embeddings.

        Args:
            embeddings: (..., n, d), of any length.
            present: (..., n) bool, False for embeddings that do not exist; None: all exist.

        Returns:
            Features (..., n, d), or (..., n, blocks * d) with ``concatenate``.
        """
        features = self.input(normalize(embeddings, dim=-1))
        outputs = []
        for block in self.blocks:
            features = block(features, present)
            outputs.append(features)
        if self.concatenate:
            return torch.cat(outputs, -1)
        return features

    @torch.no_grad()
    def refine(self, vectors: Any, neighbours: int = NEIGHBOURS) -> Tensor:
        """Exchange messages between every vector and its k-reciprocal neighbours, for use at test.

        Two vectors are k-reciprocal neighbours if each is among the k nearest others of the other, by cosine. Each
        vector and its neighbours form a separate batch.

        Args:
            vectors: Embeddings (n, d) of all pictures that are compared with each other, as an array or a tensor.
            neighbours: k.

        Returns:
            Vectors (n, d or blocks * d) of length 1.
        """
        check_count("neighbours", neighbours)
        parameter = self.input.weight
        vectors = torch.as_tensor(vectors).to(parameter)
        members, present = reciprocal_neighbours(vectors.cpu().numpy(), neighbours)
        was_training = self.training
        self.eval()
        refined = []
        for start in range(0, len(vectors), CHUNK):
            chunk = torch.from_numpy(members[start : start + CHUNK]).to(parameter.device)
            chunk_present = torch.from_numpy(present[start : start + CHUNK]).to(parameter.device)
            refined.append(self(vectors[chunk], chunk_present)[:, 0])
        self.train(was_training)
        return normalize(torch.cat(refined), dim=-1)


class LIBC(Objective):
    """Classify pictures by their embeddings, and again after messages have passed over the batch.

    Args:
        classes: Number of classes.
        dim: Size of the embeddings, which must not be normalised.
        blocks: Number of rounds of messages.
        heads: Number of attention heads; a divisor of ``dim``.
        temperature: Divides all logits.
        concatenate: Classify the outputs of all blocks side by side, not only the last one.
        smoothing: Label smoothing of both losses.
        dropout: Share of activations that are dropped in training.
        encoder_weight: Weight of the loss of the encoder's classifier, relative to that after the messages.
        seed: Seed of the dropout.

    Raises:
        ValueError: If a value is out of range.

    Examples:
        >>> loss = LIBC(classes=4, dim=8)(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 3, 3]))
        >>> sorted(loss.parts)
        ['accuracy', 'encoder', 'encoder accuracy', 'messages']
    """

    hints = Hints(needs_classes=True)
    needs_raw = True

    def __init__(
        self,
        classes: int,
        dim: int,
        blocks: int = 1,
        heads: int = 2,
        temperature: float = 0.2,
        concatenate: bool = False,
        smoothing: float = 0.1,
        dropout: float = 0.1,
        encoder_weight: float = 1.0,
        seed: int = 0,
    ) -> None:
        check_count("classes", classes, 2)
        check_range("temperature", temperature, 0, None)
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), got {smoothing}")
        if encoder_weight < 0:
            raise ValueError(f"encoder_weight must be at least 0, got {encoder_weight}")
        check_count("seed", seed, 0)
        super().__init__(
            classes=classes,
            dim=dim,
            blocks=blocks,
            heads=heads,
            temperature=temperature,
            concatenate=concatenate,
            smoothing=smoothing,
            dropout=dropout,
            encoder_weight=encoder_weight,
            seed=seed,
        )
        self.classes = classes
        self.dim = dim
        self.temperature = temperature
        self.smoothing = smoothing
        self.encoder_weight = encoder_weight
        self.seed = seed
        self.steps = 0  # batches seen in training
        self.encoder_classifier = nn.Linear(dim, classes)
        self.messages = MessagePassing(dim, blocks, heads, concatenate, dropout)
        self.norm = nn.BatchNorm1d(self.messages.out_dim)
        self.norm.bias.requires_grad_(False)
        self.classifier = nn.Linear(self.messages.out_dim, classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the sum of both losses."""
        del attributes, pictures
        if embeddings.shape[1] != self.dim:
            raise ValueError(f"embeddings must have {self.dim} dimensions as the classifier, got {embeddings.shape[1]}")
        if self.training and len(embeddings) < 2:
            raise ValueError("messages need a batch of at least two pictures, got 1")
        check_labels(labels, self.classes)
        vectors = embeddings.to(self.classifier.weight.dtype)
        encoder_logits = self.encoder_classifier(vectors) / self.temperature
        logits = self.classifier(self.norm(self._pass_messages(vectors))) / self.temperature
        encoder = cross_entropy(encoder_logits, labels, label_smoothing=self.smoothing)
        messages = cross_entropy(logits, labels, label_smoothing=self.smoothing)
        parts = {
            "encoder": encoder.detach(),
            "messages": messages.detach(),
            "encoder accuracy": _accuracy(encoder_logits, labels),
            "accuracy": _accuracy(logits, labels),
        }
        return Loss(self.encoder_weight * encoder + messages, parts)

    def get_extra_state(self) -> dict[str, int]:
        """Return the number of batches seen, from which dropout continues."""
        return {"steps": self.steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restore what ``get_extra_state`` returned."""
        self.steps = state["steps"]

    def proxy_parameters(self) -> list[nn.Parameter]:
        """The rows of the classifier behind the messages."""
        return list(self.classifier.parameters())

    def _pass_messages(self, vectors: Tensor) -> Tensor:
        """Pass messages. In training, dropout has random numbers for this batch, the same on every rank."""
        if not self.training:
            features: Tensor = self.messages(vectors)
            return features
        batch_seed = np.random.SeedSequence((self.seed, self.steps)).generate_state(1, np.uint64)
        self.messages.dropout.generator = torch.Generator(vectors.device).manual_seed(int(batch_seed[0]))
        self.steps += 1
        features = self.messages(vectors)
        self.messages.dropout.generator = None  # it cannot be pickled
        return features


class Finished(Objective):
    """An objective on normalised embeddings, for use beside one that needs them before normalisation.

    Args:
        objective: Sees the normalised embeddings.
        normalise: "l2", "clip" or "none", as the model's.
    """

    def __init__(self, objective: Objective, normalise: str) -> None:
        super().__init__(normalise=normalise)
        self.objective = objective
        self.normalise = normalise
        self.needs_attributes = objective.needs_attributes

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Normalise the embeddings, then compute the objective's loss."""
        if self.normalise == "l2":
            embeddings = normalize(embeddings)
        elif self.normalise == "clip":
            embeddings = clip(embeddings)
        loss: Loss = self.objective(embeddings, labels, attributes, pictures)
        return loss

    def proxy_parameters(self) -> list[nn.Parameter]:
        """The proxies of the objective."""
        return self.objective.proxy_parameters()


def save_messages(messages: MessagePassing, folder: Path) -> None:
    """Write a message-passing network to the folder of a run, completely or not at all."""
    with replacing(folder / MESSAGES) as unfinished:
        save_weights(messages.state_dict(), unfinished, settings=json.dumps(messages.settings))


def load_messages(folder: Path) -> MessagePassing:
    """Read what ``save_messages`` wrote.

    Args:
        folder: Folder of a run.

    Returns:
        The network, in eval mode.

    Raises:
        ValueError: If the run was not trained with LIBC, or the file is damaged.
    """
    path = folder / MESSAGES
    if not path.is_file():
        raise ValueError(f"{folder} has no {MESSAGES}: only runs with --loss libc or --libc pass messages")
    try:
        with safe_open(path, "pt") as file:
            settings = json.loads(file.metadata()["settings"])
        messages = MessagePassing(**settings)
        weights = read_weights(path)
        check_weights(path, weights)
        messages.load_state_dict(weights)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged or no message-passing network: {error}") from None
    return messages.eval()


def reciprocal_neighbours(vectors: Any, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Find the k-reciprocal neighbours of vectors by cosine.

    Args:
        vectors: (n, d).
        k: Number of nearest neighbours of each vector.

    Returns:
        Indices (n, 1 + k): each vector itself, then its k nearest others. And a mask (n, 1 + k), True for the vector
        itself and for those others that have it among their own k nearest.
    """
    count = len(vectors)
    itself = np.arange(count)[:, None]
    is_itself = np.ones_like(itself, dtype=bool)
    if count < 2:
        return itself, is_itself
    neighbours = nearest_others(vectors, min(k, count - 1))
    is_mutual = (neighbours[neighbours] == itself[:, :, None]).any(2)
    members = np.concatenate([itself, neighbours], 1)
    return members, np.concatenate([is_itself, is_mutual], 1)


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == labels).to(logits.dtype).mean()
