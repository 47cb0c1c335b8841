"""API keys: who may read and who may write.

As soon as there is any key, every request needs one. A read key reads; a write key reads and writes. Without a write
key nobody writes. Keys come from files or the environment, because command lines are visible to everybody on the
machine. There may be several of a kind, one per line, so that an old key stays valid while clients move to a new one.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

READ_VARIABLE = "LOOKALIKE_READ_KEY"
WRITE_VARIABLE = "LOOKALIKE_WRITE_KEY"
SHORTEST = 16  # characters; shorter keys can be guessed


class Access(IntEnum):
    """What a request may do; a higher value includes the lower ones."""

    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, repr=False)  # no repr: keys must not appear in a log
class Keys:
    """The accepted keys.

    Args:
        read: Keys that may read.
        write: Keys that may read and write.

    Raises:
        ValueError: If a key is too short, not printable ASCII, or in both groups.

    >>> keys = Keys(read=("a key for looking at",), write=("a key for changing it",))
    >>> keys.access("a key for looking at").name, keys.access("something else").name
    ('READ', 'NONE')
    >>> Keys().access(None).name
    'WRITE'
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in self.read:
            _check_key("read", key)
        for key in self.write:
            _check_key("write", key)
        if set(self.read) & set(self.write):
            raise ValueError("the read and the write key must differ: a reader must not be able to write")

    def __bool__(self) -> bool:
        return bool(self.read or self.write)

    def access(self, given: str | None) -> Access:
        """Return what a key allows.

        All keys are compared, each in constant time, so that the duration reveals nothing.

        Args:
            given: The key of the request, if any.

        Returns:
            The access; ``WRITE`` for everybody if no keys are configured.
        """
        if not self:
            return Access.WRITE
        given_bytes = (given or "").encode("utf-8", "surrogateescape")
        allowed = Access.NONE
        for access, keys in ((Access.READ, self.read), (Access.WRITE, self.write)):
            for key in keys:
                if hmac.compare_digest(given_bytes, key.encode()):
                    allowed = access
        return allowed

    @classmethod
    def load(cls, read_file: Path | None, write_file: Path | None, environment: Mapping[str, str]) -> "Keys":
        """Load keys from files, or else from the environment.

        Args:
            read_file: File with one read key per line. None uses ``LOOKALIKE_READ_KEY``.
            write_file: File with one write key per line. None uses ``LOOKALIKE_WRITE_KEY``.
            environment: The environment variables.

        Returns:
            The keys.

        Raises:
            ValueError: If a file holds no valid key.
        """
        return cls(
            read=_load("read", read_file, environment.get(READ_VARIABLE)),
            write=_load("write", write_file, environment.get(WRITE_VARIABLE)),
        )


def _check_key(kind: str, key: str) -> None:
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ValueError(f"a {kind} key must consist of printable ASCII characters")
    if len(key) < SHORTEST:
        raise ValueError(f"a {kind} key must have at least {SHORTEST} characters, got {len(key)}")


def _load(kind: str, file: Path | None, variable: str | None) -> tuple[str, ...]:
    if file is None:
        return _without_blank((variable or "").splitlines())
    try:
        keys = _without_blank(file.expanduser().read_text(encoding="ascii").splitlines())
    except UnicodeDecodeError:
        raise ValueError(f"a {kind} key must consist of printable ASCII characters, {file} holds others") from None
    if not keys:
        raise ValueError(f"{file} holds no key: expected one per line")
    return keys


def _without_blank(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, lines)))
