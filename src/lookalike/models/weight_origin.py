"""Where weights come from: the known file that they are, or from which ``lookalike weights convert`` made them.

A converted file carries the hashes of its source and a checksum of its own tensors. It counts as its source only if
the checksum is right.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from lookalike.models.known_weights import KnownWeights, find_by_hash
from lookalike.models.weight_files import CHECKSUM, check_weights
from lookalike.models.weight_formats import files_of

BLOCK = 1 << 20
SHA256, MD5 = "source_sha256", "source_md5"  # keys in the metadata of a converted file


class Hashes(NamedTuple):
    """SHA-256 and MD5 in hexadecimal: of a file, or of model.json and its shards, one after the other."""

    sha256: str
    md5: str


def identify(path: Path) -> KnownWeights | None:
    """Find the known file that weights are, or were converted from.

    Args:
        path: A file of weights, or the folder of a model of TensorFlow.js.

    Returns:
        The known file; None if there is none.

    Raises:
        ValueError: If ``path`` names the model.json of a damaged model.
        OSError: If a file cannot be read.
    """
    return find_by_hash(*source_hashes(path))


def source_hashes(path: Path) -> Hashes:
    """The hashes of weights, or of the file from which they were converted."""
    metadata = _metadata(path)
    if SHA256 in metadata and CHECKSUM in metadata and _is_intact(path):
        return Hashes(metadata[SHA256], metadata.get(MD5, ""))
    return hash_files(path)


def hash_files(path: Path) -> Hashes:
    """The hashes of weights as they are stored."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for file in files_of(path):
        with file.open("rb") as stream:
            while block := stream.read(BLOCK):
                sha256.update(block)
                md5.update(block)
    return Hashes(sha256.hexdigest(), md5.hexdigest())


def _metadata(path: Path) -> Mapping[str, str]:
    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except SafetensorError:
        return {}


def _is_intact(path: Path) -> bool:
    try:
        return check_weights(path, load_file(path))
    except (SafetensorError, ValueError):
        return False
