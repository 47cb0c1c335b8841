"""``index.faiss``: an IVF or HNSW structure on disk, with the numbers of its vectors and how far the items were read.

    512 bytes       JSON: what follows, and the digest of all that follows
    8 n bytes       the number of each place, int64; then n bytes, 1 where it still counted
    the rest        as FAISS writes it

It is a cache: one that is missing, damaged or too old is made anew from the items. The digest is checked before FAISS
sees a byte.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.files import replacing
from lookalike.index.database import State
from lookalike.index.kinds import Structure, load_faiss

FILE = "index.faiss"
HEAD = 512
FORMAT = 1
BLOCK = 1 << 20


class Cached(NamedTuple):
    structure: Structure
    numbers: NDArray[np.int64]  # (n,) of each place
    counts: NDArray[np.bool_]  # (n,) whether it was still there
    state: State


def write_cache(path: Path, cached: Cached) -> None:
    faiss = load_faiss()
    with replacing(path) as unfinished, unfinished.open("r+b") as file:
        file.write(b" " * HEAD)
        digest = blake2b(digest_size=16)

        def write(part: Any) -> int:
            digest.update(part)
            return file.write(part)

        write(cached.numbers.astype("<i8").tobytes())
        write(cached.counts.astype(np.uint8).tobytes())
        faiss.write_index(cached.structure.index, faiss.PyCallbackIOWriter(write))
        about = {
            "format": FORMAT,
            "kind": cached.structure.kind,
            "trained_on": cached.structure.trained_on,
            "recall": cached.structure.recall,
            "count": len(cached.numbers),
            "state": list(cached.state),
            "digest": digest.hexdigest(),
        }
        file.seek(0)
        file.write(json.dumps(about).encode().ljust(HEAD))


def read_cache(path: Path) -> Cached | None:
    """None if it is missing, damaged or of another version."""
    faiss = load_faiss()
    try:
        with path.open("rb") as file:
            about = json.loads(file.read(HEAD))
            if about["format"] != FORMAT or about["digest"] != _digest(file):
                return None
            file.seek(HEAD)
            count = int(about["count"])
            numbers = np.frombuffer(file.read(8 * count), "<i8").astype(np.int64)
            counts = np.frombuffer(file.read(count), np.uint8).astype(bool)
            index = faiss.read_index(faiss.PyCallbackIOReader(file.read))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    if index.ntotal != count:
        return None
    structure = Structure(about["kind"], index, about["trained_on"], about["recall"])
    return Cached(structure, numbers, counts, State(*about["state"]))


def _digest(file: BinaryIO) -> str:
    digest = blake2b(digest_size=16)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()
