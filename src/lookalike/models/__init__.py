"""Models: backbones and their weights, the Embedder (pictures -> vectors), its files, freezing."""

from lookalike.models.backbone import Backbone
from lookalike.models.backbones import create_backbone, is_backbone, names, starts_random
from lookalike.models.embedder import Embedder, Explanation, Head
from lookalike.models.freezing import freeze, freeze_batch_norm, parameter_groups, train_last_stages
from lookalike.models.projection import ProjectionStart, median_norm, principal_projection
from lookalike.models.replace_pooling import replace_pooling
from lookalike.models.store import load_model, save_model

__all__ = [
    "Backbone",
    "Embedder",
    "Explanation",
    "Head",
    "ProjectionStart",
    "create_backbone",
    "freeze",
    "freeze_batch_norm",
    "is_backbone",
    "load_model",
    "median_norm",
    "names",
    "parameter_groups",
    "principal_projection",
    "replace_pooling",
    "save_model",
    "starts_random",
    "train_last_stages",
]
