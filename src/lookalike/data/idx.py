"""IDX files, MNIST's format: two zero bytes, the type, the number of axes, their lengths (big-endian), the numbers."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

UNSIGNED_BYTES = 0x08


def read_idx(file: Path) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes, plain or compressed by gzip (told by the content, not the name)."""
    try:
        with file.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file) if compressed else file.open("rb") as stream:
            zeros, kind, axes = struct.unpack(">HBB", _exactly(stream.read(4), 4))
            if zeros != 0 or kind != UNSIGNED_BYTES or axes == 0:
                raise ValueError("it is not an IDX file of bytes")
            shape = struct.unpack(f">{axes}I", _exactly(stream.read(4 * axes), 4 * axes))
            size = math.prod(shape)
            content = _exactly(stream.read(size), size)
            if stream.read(1):
                raise ValueError(f"it goes on after the {size:,} bytes that its header tells of")
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return np.frombuffer(content, np.uint8).reshape(shape)


def _exactly(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise ValueError(f"it is truncated: expected {size:,} more bytes, got {len(content):,}")
    return content
