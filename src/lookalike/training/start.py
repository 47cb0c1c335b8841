"""How the head starts: the projection from principal directions, the prototypes from local features, both of a sample.

A projection that starts at random forgets what the backbone knew; one that starts from the principal directions of its
features is as good as they are from the first step on.
"""

import numpy as np
import torch
from torch import Tensor

from lookalike._util.progress import Display
from lookalike.data.pictures import Pictures
from lookalike.models import Embedder
from lookalike.pooling.base import StartsFromData
from lookalike.training.feeds import Feed
from lookalike.training.settings import Settings

PICTURES = 1024
PLACES = 16  # local features taken of each picture
RELATIVE_RATE = 0.0075
REACHING = 2.0  # a median norm at which prototypes reach the unit sphere, where they are best also for shorter features


@torch.no_grad()
def start_head(embedder: Embedder, feed: Feed, train: Pictures, settings: Settings, display: Display) -> str:
    """Start projection and prototypes; says what was done."""
    if settings.start == "random":
        return "start: random weights"
    if not embedder.head.projects_channels:
        return f"start: random weights, as {settings.pooling} leaves the backbone's channels"
    local, averages = _sample(embedder, feed, train, settings, display)
    start = embedder.head.start_from_pca(local, scale_to_median_norm=settings.median_norm)
    text = f"start: {len(start.weight)} principal directions of {local.shape[1]}, which hold {start.kept:.1%}; "
    text += f"local features have a median norm of {start.median_norm:.2f}"
    pooling = embedder.head.pooling
    if isinstance(pooling, StartsFromData) and settings.pooling_settings.get("init") != "random":
        candidates = averages if settings.prototypes_from == "pictures" else local
        if len(candidates) < pooling.num_prototypes <= len(local):
            candidates = local
            text += f"; prototypes from places, as {len(averages)} pictures are too few for {pooling.num_prototypes}"
        radius = settings.pooling_settings.get("radius", 1.0)
        stretch = max(1.0, REACHING * radius / settings.median_norm) if pooling.in_unit_ball else 1.0
        pooling.init_from(stretch * embedder.head.project(candidates))
    return text


def gentle_rate(embedder: Embedder) -> float:
    """A rate that does not forget the start: with Adam, a step changes a weight by less than 1 % of the usual size.

    Chosen on CUB's training classes with features of EfficientNet-lite0; relative, because the size of the weights
    that give local features a set norm depends on the backbone.
    """
    projection = embedder.head.projection
    assert projection is not None
    return float(f"{RELATIVE_RATE * float(projection.weight.detach().square().mean().sqrt()):.2g}")


def _sample(
    embedder: Embedder, feed: Feed, train: Pictures, settings: Settings, display: Display
) -> tuple[Tensor, Tensor]:
    """Local features (K, C) and averages (M, C) of some training pictures."""
    chance = np.random.default_rng(settings.seed)
    chosen = np.sort(chance.permutation(len(train))[:PICTURES])
    device = next(embedder.parameters()).device
    embedder.eval()
    local, averages = [], []
    with display.bar(len(chosen), "start") as tick:
        for inputs in feed.evaluation(train.take(chosen)):
            inputs = inputs.to(device)
            tokens = (inputs if settings.freeze_backbone else embedder.backbone(inputs)).float()
            places = torch.from_numpy(chance.permuted(np.tile(np.arange(tokens.shape[1]), (len(tokens), 1)), axis=1))
            places = places[:, :PLACES].to(device).unsqueeze(-1).expand(-1, -1, tokens.shape[2])
            local.append(tokens.gather(1, places).flatten(0, 1))
            averages.append(tokens.mean(1))
            tick(len(inputs))
    return torch.cat(local), torch.cat(averages)
