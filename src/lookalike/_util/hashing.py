"""Keys of cached contents."""

from hashlib import blake2b

KEY_LENGTH = 32  # characters, in hexadecimal


def digest(*parts: str | bytes) -> str:
    """Return a key of ``KEY_LENGTH`` characters for a sequence of texts or bytes.

    Args:
        parts: The sequence; its division into parts matters.

    Examples:
        >>> len(digest("a", "b")), digest("ab", "c") == digest("a", "bc")
        (32, False)
    """
    state = blake2b(digest_size=KEY_LENGTH // 2)
    for part in parts:
        if isinstance(part, str):
            part = part.encode(errors="surrogateescape")
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()
