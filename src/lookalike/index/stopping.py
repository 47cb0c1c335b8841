"""Reading that may be stopped, because it takes longer than its caller can wait.

SQLite asks between its steps. Milvus has no such question: there a reading runs to its end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STEPS = 10_000  # of SQLite's machine between two questions: about a millisecond

_QUESTION: ContextVar[Callable[[], bool] | None] = ContextVar("question", default=None)


class Stopped(RuntimeError):  # noqa: N818 - names the state
    """The reading was stopped before its end."""


@contextmanager
def stopping(when: Callable[[], bool]) -> Iterator[None]:
    """Stop what is read from an index inside of the ``with`` block, in this thread, when ``when()`` is true.

    Args:
        when: Is called often, so it should be fast.
    """
    token = _QUESTION.set(when)
    try:
        yield
    finally:
        _QUESTION.reset(token)


def question() -> Callable[[], bool] | None:
    """Return ``when`` of the innermost block, or None outside of any."""
    return _QUESTION.get()
