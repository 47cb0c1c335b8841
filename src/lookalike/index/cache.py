"""``index.faiss``: a search structure on disk, with row numbers and the state of the database it was built from.

    512 bytes       JSON: kind, count, state, and the digest of these and of all that follows
    8 n bytes       row number of each position, int64
    n bytes         1 where the item still existed
    the rest        as FAISS writes it

It is a cache: a missing, damaged or outdated one is rebuilt from the items. The digest is checked before FAISS reads
a byte.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import replacing
from lookalike._util.untrusted import parse_json
from lookalike.index.database import State
from lookalike.index.kinds import load_faiss
from lookalike.index.structures import Structure

FILE = "index.faiss"
HEADER_BYTES = 512
FORMAT = 2
BLOCK = 1 << 20


class Cached(NamedTuple):
    """A structure and the rows that it was built from.

    Attributes:
        structure: The search structure.
        numbers: Row number (n,) of each position.
        alive: Whether the row still existed (n,).
        state: State of the database.
    """

    structure: Structure
    numbers: NDArray[np.int64]
    alive: NDArray[np.bool_]
    state: State


def write_cache(path: Path, cached: Cached) -> None:
    """Write a structure to ``path``; the file appears complete or not at all."""
    faiss = load_faiss()
    with replacing(path) as unfinished, unfinished.open("r+b") as file:
        file.write(b" " * HEADER_BYTES)
        digest = blake2b(digest_size=16)

        def write(block: Any) -> int:
            digest.update(block)
            return file.write(block)

        write(cached.numbers.astype("<i8").tobytes())
        write(cached.alive.astype(np.uint8).tobytes())
        faiss.write_index(cached.structure.index, faiss.PyCallbackIOWriter(write))
        header: dict[str, Any] = {
            "format": FORMAT,
            "kind": cached.structure.kind,
            "trained_on": cached.structure.trained_on,
            "recall": cached.structure.recall,
            "depth": cached.structure.depth,
            "count": len(cached.numbers),
            "state": list(cached.state),
        }
        header["digest"] = _with_header(digest, header)
        file.seek(0)
        file.write(json.dumps(header).encode().ljust(HEADER_BYTES))


def read_cache(path: Path) -> Cached | None:
    """Read a structure from ``path``; None if it is missing, damaged or of another version."""
    faiss = load_faiss()
    try:
        with path.open("rb") as file:
            header = parse_json(file.read(HEADER_BYTES).decode())
            expected = header.pop("digest")
            if header["format"] != FORMAT or expected != _digest(file, header):
                return None
            file.seek(HEADER_BYTES)
            count = int(header["count"])
            numbers = np.frombuffer(file.read(8 * count), "<i8").astype(np.int64)
            alive = np.frombuffer(file.read(count), np.uint8).astype(bool)
            index = faiss.read_index(faiss.PyCallbackIOReader(file.read))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    if index.ntotal != count:
        return None
    structure = Structure(header["kind"], index, header["trained_on"], header["recall"], header.get("depth", 0))
    return Cached(structure, numbers, alive, State(*header["state"]))


def _digest(file: BinaryIO, header: dict[str, Any]) -> str:
    digest = blake2b(digest_size=16)
    while block := file.read(BLOCK):
        digest.update(block)
    return _with_header(digest, header)


def _with_header(digest: blake2b, header: dict[str, Any]) -> str:
    """The digest of what was hashed so far and the header."""
    digest.update(json.dumps(header, sort_keys=True).encode())
    return digest.hexdigest()
