"""Checksums of files that are replaced again and again, in ``checksums.json`` beside them.

The checksum of a new file is accepted before the file replaces the old one, whose checksum stays in the list. A file is
good if its checksum is in the list, so that a crash between the two writes is no damage. Files that are not listed, as
those of earlier versions, are not checked.
"""

import json
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lookalike._util.files import write_text

FILE = "checksums.json"
BLOCK = 1 << 20
LARGEST = 2**20  # bytes of a list of checksums


class DamagedFile(ValueError):  # noqa: N818 - names the state
    """A file whose content does not have its checksum."""


class Finding(NamedTuple):
    """What the check of something stored has found.

    Attributes:
        part: Name of the file or files.
        status: "damaged"; or "no checksum" if it can be read, but damage could not be noticed.
        detail: What is wrong, and what to do.
    """

    part: str
    status: Literal["ok", "damaged", "no checksum"]
    detail: str = ""


def describe_findings(findings: list[Finding]) -> str:
    """One line for each part."""
    return "\n".join(f"{finding.status:<11}  {finding.part}  {finding.detail}".rstrip() for finding in findings)


def hash_bytes(content: bytes) -> str:
    """Hash bytes as ``hash_content`` hashes a file."""
    return blake2b(content, digest_size=16).hexdigest()


def hash_content(path: Path) -> str:
    """Hash the content of a file: 32 hexadecimal digits."""
    state = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            state.update(block)
    return state.hexdigest()


def write_checked(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, with a checksum. One process at a time may write into a folder."""
    checksum = hash_bytes(text.encode())
    try:
        checksums = read_manifest(path.parent)
    except DamagedFile:
        checksums = {}
    accepted = [checksum]
    if path.exists():
        current = hash_content(path)
        if current in checksums.get(path.name, []) and current != checksum:
            accepted.append(current)
    checksums[path.name] = accepted
    _write_manifest(path.parent, checksums)
    write_text(path, text)


def remove_checked(path: Path) -> None:
    """Remove a file that ``write_checked`` wrote, and its checksum. It need not exist."""
    with suppress(DamagedFile):
        checksums = read_manifest(path.parent)
        if checksums.pop(path.name, None) is not None:
            _write_manifest(path.parent, checksums)
    path.unlink(missing_ok=True)


def check_content(path: Path, content: bytes) -> None:
    """Check what was read from a file.

    Raises:
        DamagedFile: If ``checksums.json`` beside it lists another checksum, or is damaged itself.
    """
    accepted = read_manifest(path.parent).get(path.name)
    if accepted is not None and hash_bytes(content) not in accepted:
        raise DamagedFile(
            f"{path} is damaged, or was edited: its checksum is not that in {FILE}. Restore a copy; "
            f"if you edited it yourself, delete {path.with_name(FILE)}"
        )


def read_manifest(folder: Path) -> dict[str, list[str]]:
    """Read ``checksums.json``.

    Returns:
        The accepted checksums by file name; empty if there is no such file.

    Raises:
        DamagedFile: If it is damaged.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        content: Any = json.loads(text)
        checksums: dict[str, list[str]] = content["blake2b"]
        is_good = content["checksum"] == _own_checksum(checksums)
    except (ValueError, KeyError, TypeError, RecursionError):
        is_good = False
    if not is_good:
        raise DamagedFile(f"{path} is damaged: restore a copy, or delete it if you trust the files beside it")
    return checksums


def check_listed_files(folder: Path, prefix: str = "") -> list[Finding]:
    """Check all files that are listed in ``checksums.json``; ``prefix`` goes before their names."""
    findings = []
    try:
        names = sorted(read_manifest(folder))
    except DamagedFile as error:
        return [Finding(prefix + FILE, "damaged", str(error))]
    for name in names:
        try:
            check_content(folder / name, (folder / name).read_bytes())
            findings.append(Finding(prefix + name, "ok"))
        except DamagedFile as error:
            findings.append(Finding(prefix + name, "damaged", str(error)))
        except OSError as error:
            findings.append(Finding(prefix + name, "damaged", f"it cannot be read: {error.strerror}. Restore a copy"))
    return findings


def with_checksum(content: dict[str, Any]) -> str:
    """Return a mapping as JSON that has a checksum of itself."""
    plain = json.loads(json.dumps(content))  # as it will be read: JSON turns keys into texts
    return json.dumps({**plain, "checksum": _own_checksum(plain)}) + "\n"


def has_good_checksum(content: dict[str, Any]) -> bool:
    """Remove the checksum from a mapping that was read; return whether it is right."""
    checksum = content.pop("checksum", None)
    return bool(checksum == _own_checksum(content))


def _write_manifest(folder: Path, checksums: dict[str, list[str]]) -> None:
    content = {"blake2b": checksums, "checksum": _own_checksum(checksums)}
    write_text(folder / FILE, json.dumps(content, indent=1) + "\n")


def _own_checksum(content: dict[str, Any]) -> str:
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def write_checksums(path: Path, accepted: list[str]) -> None:
    """Write the checksums that a single large file may have."""
    write_text(path, json.dumps({"blake2b": accepted}) + "\n")


def read_checksums(path: Path) -> list[str] | None:
    """Read the checksums that a file may have; None if an earlier version wrote the file. A damaged list is empty."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            content: Any = json.loads(file.read(LARGEST))
        return [str(checksum) for checksum in content["blake2b"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
