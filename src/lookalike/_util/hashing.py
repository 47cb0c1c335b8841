"""Content keys for caches."""

from hashlib import blake2b

KEY_LENGTH = 32  # characters, in hexadecimal


def digest(*parts: str | bytes) -> str:
    """A key of KEY_LENGTH characters for a sequence of texts.

    >>> len(digest("a", "b")), digest("ab", "c") == digest("a", "bc")
    (32, False)
    """
    state = blake2b(digest_size=KEY_LENGTH // 2)
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()
