"""The HTTP server: ``create_app(idx, model)`` is the whole of it, ``lookalike serve IDX`` the way to run it."""

from lookalike.app.server.app import create_app
from lookalike.app.server.keys import Keys
from lookalike.app.server.limits import Limits

__all__ = ["Keys", "Limits", "create_app"]
