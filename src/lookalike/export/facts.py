"""What has to be known to use a model without this library; it goes into every exported file."""

from typing import Any

from lookalike import __version__
from lookalike.export.graph import INPUT
from lookalike.models import Embedder
from lookalike.models.input_spec import InputSpec


def facts(embedder: Embedder, outputs: list[str], *, int8: bool = False) -> dict[str, Any]:
    """Plain values that JSON can hold."""
    settings = embedder.settings()
    spec = embedder.input_spec
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
    """How a picture becomes the numbers that go in, for people."""
    colours = "BGR, 0 to 255" if spec.bgr255 else "RGB, divided by 255"
    return [
        "turn it upright as its EXIF data say; transparency onto white",
        f"resize its shorter side to {spec.resize_to}, {spec.interpolation} with antialiasing",
        f"cut out the middle {spec.size} x {spec.size}",
        f"{colours}, channels first",
        f"subtract {list(spec.mean)}, divide by {list(spec.std)}",
    ]
