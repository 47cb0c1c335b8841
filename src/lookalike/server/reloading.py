"""Takes over a new version of the index while the server goes on answering.

Index, model and routes of one version are one app, so that no request sees the vectors of one model and the queries of
another. Requests that began with the old app finish there; then its threads stop.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from fastapi import FastAPI
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)
SECONDS = 0.5  # between two looks at index.json


class ReloadingApp:
    """An ASGI app that forwards to the app of the current version.

    Args:
        app: The app of the version that is open.
        make_current_app: Opens the current version and makes its app, which takes over from the given one.
        seconds: Time between two looks at the version.
    """

    def __init__(self, app: FastAPI, make_current_app: Callable[[FastAPI], FastAPI], seconds: float = SECONDS) -> None:
        self.app = app
        self._make_current_app = make_current_app
        self._seconds = seconds
        self._users: Counter[FastAPI] = Counter()
        self._failed = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app = self.app
        self._users[app] += 1
        try:
            await app(scope, receive, send)
        finally:
            self._users[app] -= 1
            if app is not self.app and not self._users[app]:
                await self._retire(app)

    @property
    def state(self) -> State:
        """State of the current app."""
        return self.app.state

    async def reload(self) -> bool:
        """Take over a new version, if there is one; return whether that was done."""
        idx = self.app.state.context.collection.idx
        try:
            if await asyncio.to_thread(idx.is_current):
                return False
            app = await asyncio.to_thread(self._make_current_app, self.app)
        except Exception as error:
            if str(error) != self._failed:  # once, not at every look
                self._failed = str(error)
                logger.error("the new version of the index cannot be opened; the old one stays", exc_info=error)
            return False
        old, self.app, self._failed = self.app, app, ""
        logger.warning("the index has another model now: %s", app.state.context.collection.idx.fingerprint)
        if not self._users[old]:
            await self._retire(old)
        return True

    async def _live(self, receive: Receive, send: Send) -> None:
        """Handle startup and shutdown of the server."""
        await receive()
        self.app.state.context.decoder.start()
        watching = asyncio.create_task(self._watch())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(self.app.state.context.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            await self.reload()

    async def _retire(self, app: FastAPI) -> None:
        del self._users[app]
        await asyncio.to_thread(_close, app)


def _close(app: FastAPI) -> None:
    app.state.context.retire()
    for served in reversed(app.state.context.served.values()):  # the index itself last
        served.collection.idx.close()
