"""What the model makes of pictures in the midst of a run, by all processes together, and how good that is."""

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from lookalike.data.pictures import Pictures
from lookalike.inference.model import embed_batches
from lookalike.models.backbone import in_eval_mode
from lookalike.training.assembly import Assembly
from lookalike.training.evaluation import join_shares, measure


class Measuring:
    def __init__(self, parts: Assembly) -> None:
        self.parts, self.fabric = parts, parts.fabric

    def figures(self, with_baseline: bool = False) -> tuple[dict[str, float], dict[str, float]]:
        """Of what is held out; where asked also of the backbone's own features, averaged, for the first process."""
        validation = self.parts.validation
        if validation is None:
            return {}, {}
        vectors = self._embed(validation, "measuring", with_baseline)
        figures: dict[str, float] = {}
        baseline: dict[str, float] = {}
        if self.parts.first:
            figures = measure(vectors[0], validation, distance=self.parts.embedder.head.distance)
            baseline = measure(vectors[1], validation) if with_baseline else {}
        return self.fabric.broadcast(figures), baseline

    def vectors(self, places: NDArray[np.int64]) -> Tensor:
        """Of training pictures (n,) -> (n, D) on the CPU; one that comes twice is embedded once."""
        found, which = np.unique(places, return_inverse=True)
        return self._embed(self.parts.train.take(found), "embedding", False)[0][torch.from_numpy(which)]

    def _embed(self, pictures: Pictures, what: str, with_average: bool) -> tuple[Tensor, ...]:
        """The vectors of all pictures, and where asked their mean local features."""
        embedder, rank, world = self.parts.embedder, self.parts.rank, self.parts.world
        most = -(-len(pictures) // world)

        def forward(inputs: Tensor) -> tuple[Tensor, ...]:
            with self.fabric.autocast():
                tokens = inputs if self.parts.settings.freeze_backbone else embedder.backbone(inputs)
                vectors = embedder.head(tokens)
            return (vectors, tokens.float().mean(1)) if with_average else (vectors,)

        with in_eval_mode(embedder), self.parts.display.bar(most, what) as tick:
            batches = self.parts.feed.evaluation(pictures, rank, world)
            own = embed_batches(batches, forward, device=self.fabric.device, tick=tick)
        if world == 1:
            return own
        padded = [pad(part, (0, 0, 0, most - len(part))).to(self.fabric.device) for part in own]
        return tuple(join_shares(cast(Tensor, self.fabric.all_gather(part)), len(pictures)).cpu() for part in padded)
