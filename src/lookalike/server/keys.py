"""Who may read and who may write.

One rule: as soon as there is any key, every request needs one. A read key reads; a write key reads and writes; without
a write key nobody writes. Keys come from files or the environment, since what stands on a command line everybody on
the machine can see. Several of a kind, one per line, let an old key live on while people move to the new one.
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

READ_VARIABLE = "LOOKALIKE_READ_KEY"
WRITE_VARIABLE = "LOOKALIKE_WRITE_KEY"
SHORTEST = 16  # characters: a key is guessed at by programs


class Access(IntEnum):
    NONE = 0
    READ = 1
    WRITE = 2


@dataclass(frozen=True, repr=False)  # without repr: keys do not belong into a log
class Keys:
    """
    >>> keys = Keys(read=("a key for looking at",), write=("a key for changing it",))
    >>> keys.access("a key for looking at").name, keys.access("something else").name
    ('READ', 'NONE')
    >>> Keys().access(None).name
    'WRITE'
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("read", "write"):
            for key in getattr(self, kind):
                if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key != key.strip():
                    raise ValueError(f"a {kind} key must be of printable ASCII characters")
                if len(key) < SHORTEST:
                    raise ValueError(f"a {kind} key must have at least {SHORTEST} characters, got {len(key)}")
        if set(self.read) & set(self.write):
            raise ValueError("the read and the write key must differ: who reads is not to write")

    def __bool__(self) -> bool:
        return bool(self.read or self.write)

    def access(self, given: str | None) -> Access:
        """What ``given`` allows. All keys are compared, each in constant time: how long it takes says nothing."""
        if not self:
            return Access.WRITE
        word = (given or "").encode("utf-8", "surrogateescape")
        found = Access.NONE
        for access, keys in ((Access.READ, self.read), (Access.WRITE, self.write)):
            for key in keys:
                if hmac.compare_digest(word, key.encode()):
                    found = access
        return found

    @classmethod
    def load(cls, read_file: Path | None, write_file: Path | None, environment: Mapping[str, str]) -> "Keys":
        """From files where they are named, else from ``LOOKALIKE_READ_KEY`` and ``LOOKALIKE_WRITE_KEY``."""
        return cls(
            read=_from(read_file, environment.get(READ_VARIABLE), "read"),
            write=_from(write_file, environment.get(WRITE_VARIABLE), "write"),
        )


def _from(file: Path | None, variable: str | None, kind: str) -> tuple[str, ...]:
    if file is None:
        return _lines((variable or "").splitlines())
    try:
        keys = _lines(file.expanduser().read_text(encoding="ascii").splitlines())
    except UnicodeDecodeError:
        raise ValueError(f"a {kind} key must be of printable ASCII characters, {file} holds others") from None
    if not keys:
        raise ValueError(f"{file} holds no key: one line for each is expected")
    return keys


def _lines(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line.strip() for line in lines if line.strip())
