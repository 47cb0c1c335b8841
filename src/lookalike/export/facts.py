"""Facts for using a model without this library; every exported file contains them."""

from dataclasses import replace
from typing import Any

from lookalike import __version__
from lookalike.export.graph import INPUT
from lookalike.models import Embedder
from lookalike.models.input_spec import InputSpec


def facts(embedder: Embedder, outputs: list[str], *, int8: bool = False) -> dict[str, Any]:
    """Describe a model.

    Args:
        embedder: The model.
        outputs: Names of the exported outputs.
        int8: Whether ``quantise_weights`` was applied.

    Returns:
        Plain values that JSON can hold: input, preprocessing, outputs, distance, and where the model comes from.
    """
    settings = embedder.settings()
    spec = replace(embedder.input_spec, cells=None)  # a file takes squares of one size: the centre crop
    return {
        "made_by": f"lookalike {__version__}",
        "backbone": settings["backbone"],
        "pooling": settings["pooling"],
        "dim": embedder.head.dim,
        "normalise": settings["normalise"],
        "distance": embedder.head.distance,
        "int8_weights": int8,
        "input": {"name": INPUT, "shape": ["batch", 3, spec.size, spec.size], "dtype": "float32"},
        "outputs": outputs,
        "preprocessing": {**spec.to_dict(), "resize": spec.resize_to, "steps": steps(spec)},
    }


def steps(spec: InputSpec) -> list[str]:
    """The preprocessing of ``lookalike.inference.preprocess`` in words, one step per line."""
    colours = "BGR, 0 to 255" if spec.bgr255 else "RGB, divided by 255"
    return [
        "turn it upright as its EXIF data say; composite transparency onto white",
        f"resize its shorter side to {spec.resize_to}, {spec.interpolation} with antialiasing",
        f"cut out the middle {spec.size} x {spec.size}",
        f"{colours}, channels first",
        f"subtract {list(spec.mean)}, divide by {list(spec.std)}",
    ]
