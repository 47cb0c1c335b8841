"""``map.bin``: where the items lie on the map.

    a line      JSON: format, method, count, the key of ids and vectors, and the digest of all that follows
    8 n bytes   x and y of each item in order of id, float32

It is a cache: a missing, damaged or outdated one is computed again.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import hash_bytes
from lookalike._util.files import replacing
from lookalike._util.untrusted import parse_json

FILE = "map.bin"
FORMAT = 1
LONGEST_HEADER = 4096  # bytes


class Layout(NamedTuple):
    """A stored layout.

    Attributes:
        method: How it was computed.
        key: Key of the items, see ``layout_key``.
        points: Coordinates (n, 2) in [0, 1], in order of id.
    """

    method: str
    key: str
    points: NDArray[np.float64]


def layout_key(ids: Sequence[str], vectors: NDArray[np.float32]) -> str:
    """Return a digest of ids and vectors: another item or vector needs another layout, another label does not."""
    digest = blake2b("\n".join(ids).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(vectors, "<f4").tobytes())
    return digest.hexdigest()


def write_layout(path: Path, layout: Layout) -> None:
    """Write a layout; the file appears complete or not at all."""
    content = layout.points.astype("<f4").tobytes()
    header = {"format": FORMAT, "method": layout.method, "count": len(layout.points), "key": layout.key}
    text = json.dumps({**header, "digest": _digest(header, content)})
    with replacing(path) as unfinished:
        unfinished.write_bytes(text.encode() + b"\n" + content)


def read_layout(path: Path) -> Layout | None:
    """Read a layout; None if the file is missing, damaged or of another version."""
    try:
        with path.open("rb") as file:
            header = parse_json(file.readline(LONGEST_HEADER).decode())
            expected = header.pop("digest")
            content = file.read()
        if header["format"] != FORMAT or _digest(header, content) != expected:
            return None
        points = np.frombuffer(content, "<f4").reshape(-1, 2).astype(np.float64)
        return Layout(str(header["method"]), str(header["key"]), points)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(header: dict[str, object], content: bytes) -> str:
    return hash_bytes(json.dumps(header, sort_keys=True).encode() + content)
