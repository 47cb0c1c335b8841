"""API keys: who may read and who may write.

As soon as there is any key, every request needs one. A read key reads; a write key reads and writes. Without a write
key nobody writes. Keys come from files or the environment, because command lines are visible to everybody on the
machine. There may be several of a kind, one per line, so that an old key stays valid while clients move to a new one.

Indented lines below a key, with a colon, limit it:

    a-key-for-the-shop
        name: anna
        collections: birds, fish
        reads-per-minute: 600

The name is what the history of marks and labels shows; it gives no right.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from lookalike.server.numbers import decimal, whole_number
from lookalike.server.quotas import Quota

READ_VARIABLE = "LOOKALIKE_READ_KEY"
WRITE_VARIABLE = "LOOKALIKE_WRITE_KEY"
SHORTEST = 16  # characters; shorter keys can be guessed
COLLECTIONS = "collections"
PER_MINUTE = "-per-minute"
NAME = "name"
LONGEST_NAME = 64
INDEX_SUFFIX = ".idx"


class Access(IntEnum):
    """What a request may do; a higher value includes the lower ones."""

    NONE = 0
    READ = 1
    WRITE = 2


class Rules(NamedTuple):
    """Limits of one key.

    Attributes:
        collections: Names of the collections that it is for; empty for all.
        quota: Its quota, where it differs from the server's.
        name: Who uses it, for the history of marks and labels.
    """

    collections: tuple[str, ...] = ()
    quota: Quota = Quota()
    name: str = ""


class Grant(NamedTuple):
    """What a request may do.

    Attributes:
        access: The access.
        key: The key; empty if there is none or it is wrong.
        collections: Names of the collections that it is for; empty for all.
        quota: Its quota, where it differs from the server's.
        name: Who uses it, for the history of marks and labels.
    """

    access: Access
    key: str = ""
    collections: tuple[str, ...] = ()
    quota: Quota = Quota()
    name: str = ""


@dataclass(frozen=True, repr=False)  # no repr: keys must not appear in a log
class Keys:
    """The accepted keys.

    Args:
        read: Keys that may read.
        write: Keys that may read and write.
        rules: Limits by key.

    Raises:
        ValueError: If a key is too short, not printable ASCII, or in both groups.

    Examples:
        >>> keys = Keys(read=("a key for looking at",), write=("a key for changing it",))
        >>> keys.access("a key for looking at").name, keys.access("something else").name
        ('READ', 'NONE')
        >>> Keys().access(None).name
        'WRITE'
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    rules: Mapping[str, Rules] = field(default_factory=dict)

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
        """Return the access of a key; ``WRITE`` for everybody if no keys are configured."""
        return self.grant(given).access

    def grant(self, given: str | None) -> Grant:
        """Return what a key allows, and its limits.

        All keys are compared, each in constant time, so that the duration reveals nothing.

        Args:
            given: The key of the request, if any.

        Returns:
            The grant; ``WRITE`` for everybody if no keys are configured.
        """
        if not self:
            return Grant(Access.WRITE)
        given_bytes = (given or "").encode("utf-8", "surrogateescape")
        grant = Grant(Access.NONE)
        for access, keys in ((Access.READ, self.read), (Access.WRITE, self.write)):
            for key in keys:
                if hmac.compare_digest(given_bytes, key.encode()):
                    grant = Grant(access, key, *self.rules.get(key, Rules()))
        return grant

    @classmethod
    def load(cls, read_file: Path | None, write_file: Path | None, environment: Mapping[str, str]) -> "Keys":
        """Load keys from files, or else from the environment.

        Args:
            read_file: File with one read key per line, and its limits below it. None uses ``LOOKALIKE_READ_KEY``.
            write_file: File with write keys in the same form. None uses ``LOOKALIKE_WRITE_KEY``.
            environment: The environment variables.

        Returns:
            The keys.

        Raises:
            ValueError: If a file holds no valid key, or limits that cannot be read.
        """
        read = _load("read", read_file, environment.get(READ_VARIABLE))
        write = _load("write", write_file, environment.get(WRITE_VARIABLE))
        rules = {key: limits for key, limits in {**read, **write}.items() if limits != Rules()}
        return cls(tuple(read), tuple(write), rules)


def _check_key(kind: str, key: str) -> None:
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ValueError(f"a {kind} key must consist of printable ASCII characters")
    if len(key) < SHORTEST:
        raise ValueError(f"a {kind} key must have at least {SHORTEST} characters, got {len(key)}")


def _load(kind: str, file: Path | None, variable: str | None) -> dict[str, Rules]:
    if file is None:
        return _parse_keys(variable or "", f"the environment variable of the {kind} key")
    try:
        keys = _parse_keys(file.expanduser().read_text(encoding="ascii"), str(file))
    except UnicodeDecodeError:
        raise ValueError(f"a {kind} key must consist of printable ASCII characters, {file} holds others") from None
    if not keys:
        raise ValueError(f"{file} holds no key: expected one per line")
    return keys


def _parse_keys(text: str, source: str) -> dict[str, Rules]:
    """Parse keys, each with the indented lines below it. Messages never quote a line: it may be a key."""
    keys: dict[str, Rules] = {}
    key = ""
    for number, line in enumerate(text.splitlines(), start=1):
        name, colon, value = line.strip().partition(":")
        if not name and not colon:
            continue
        if not key or not colon or not line[0].isspace():
            key = line.strip()
            keys[key] = Rules()
            continue
        try:
            keys[key] = _limited(keys[key], name.strip(), value.strip())
        except ValueError as error:
            raise ValueError(f"{source}, line {number}: {error}") from None
    return keys


def _limited(rules: Rules, name: str, value: str) -> Rules:
    """Add one limit to the rules of a key."""
    if name == COLLECTIONS:
        names = [word.strip().removesuffix(INDEX_SUFFIX) for word in value.split(",")]
        if not all(names):
            raise ValueError(f"{COLLECTIONS} must be names of indexes, separated by commas")
        return rules._replace(collections=tuple(names))
    if name == NAME:
        if not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
            raise ValueError(f"{NAME} must be a printable text of at most {LONGEST_NAME} characters")
        return rules._replace(name=value)
    quantities = [quantity.name for quantity in fields(Quota)]
    quantity = name.removesuffix(PER_MINUTE)
    if quantity not in quantities or not name.endswith(PER_MINUTE):
        allowed = ", ".join([NAME, COLLECTIONS, *(word + PER_MINUTE for word in quantities)])
        raise ValueError(f"an indented line limits the key above it; expected one of {allowed}, then a colon")
    if quantity == "megabytes":
        quota = Quota(megabytes=decimal(value))
    else:
        quota = Quota(**{quantity: whole_number(value)})
    return rules._replace(quota=rules.quota.updated(quota))
