"""Pictures for the server, as bytes."""

import io

import numpy as np
from PIL import Image


def noise(width: int, height: int, seed: int = 7) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()
