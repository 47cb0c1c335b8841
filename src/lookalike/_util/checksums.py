"""Checksum of a file that is replaced again and again, in a JSON file beside it.

The checksum of the new file is written before the file replaces the old one, whose checksum stays in the list. A file
is good if its checksum is in the list, so that a crash between the two writes is no damage.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lookalike._util.files import write_text

BLOCK = 1 << 20


def hash_content(path: Path) -> str:
    """Hash the content of a file: 32 hexadecimal digits."""
    state = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            state.update(block)
    return state.hexdigest()


def write_checksums(path: Path, accepted: list[str]) -> None:
    """Write the checksums that a file may have."""
    write_text(path, json.dumps({"blake2b": accepted}) + "\n")


def read_checksums(path: Path) -> list[str] | None:
    """Read the checksums that a file may have; None if an earlier version wrote the file. A damaged list is empty."""
    if not path.exists():
        return None
    try:
        content: Any = json.loads(path.read_bytes())
        return [str(checksum) for checksum in content["blake2b"]]
    except (ValueError, KeyError, TypeError):
        return []
