"""Models: backbones and their weights, the Embedder (pictures -> vectors), its files, freezing.

Names load on first use, so that importing ``lookalike.models.input_spec`` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.models.backbone import Backbone
    from lookalike.models.backbones import check_weights, create_backbone, is_backbone, names, starts_random
    from lookalike.models.embedder import Embedder, Explanation, Head
    from lookalike.models.freezing import freeze, freeze_batch_norm, parameter_groups, train_last_stages
    from lookalike.models.projection import ProjectionStart, Whitening, median_norm, principal_projection, whitening
    from lookalike.models.store import load_model, save_model
    from lookalike.models.timm_pooling import replace_pooling

__all__ = [
    "Backbone",
    "Embedder",
    "Explanation",
    "Head",
    "ProjectionStart",
    "Whitening",
    "check_weights",
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
    "whitening",
]

_MODULES = {
    "backbone": ["Backbone"],
    "backbones": ["check_weights", "create_backbone", "is_backbone", "names", "starts_random"],
    "embedder": ["Embedder", "Explanation", "Head"],
    "freezing": ["freeze", "freeze_batch_norm", "parameter_groups", "train_last_stages"],
    "projection": ["ProjectionStart", "Whitening", "median_norm", "principal_projection", "whitening"],
    "store": ["load_model", "save_model"],
    "timm_pooling": ["replace_pooling"],
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"lookalike.models.{module}"), name)
    raise AttributeError(f"module 'lookalike.models' has no attribute {name!r}")
