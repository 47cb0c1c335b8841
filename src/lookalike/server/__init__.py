"""The HTTP server: ``create_app(idx, model)`` is the whole of it, ``lookalike serve IDX`` the way to run it."""

from lookalike.server.app import create_app
from lookalike.server.keys import Keys
from lookalike.server.limits import Limits

__all__ = ["Keys", "Limits", "create_app"]
