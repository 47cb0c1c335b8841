"""The whole server as one ASGI application."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from fastapi import FastAPI

from lookalike import __version__
from lookalike.index.base import Index
from lookalike.inference.model import TrainedModel
from lookalike.server import errors, routes_info, routes_items, routes_search, static
from lookalike.server.context import Context
from lookalike.server.keys import Keys
from lookalike.server.limits import Limits
from lookalike.server.middleware import LOOPBACK_NAMES, GuardMiddleware

DESCRIPTION = """Search a collection of pictures by what they look like. Errors are
`{"error": {"code": "...", "message": "one line"}}`. Where keys are set, one goes into the header `X-API-Key`."""


def create_app(
    idx: Index,
    model: TrainedModel,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] | None = LOOPBACK_NAMES,
) -> FastAPI:
    """The server of one index.

    keys: who may read and write; without any, everybody who reaches it.
    hosts: the names it goes by, without port; requests for others are refused. None: any, for servers with keys.
    The index stays the caller's, to be closed after the app has ended.
    """
    context = Context(idx, model, keys or Keys(), limits or Limits())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    app = FastAPI(
        title="lookalike",
        version=__version__,
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,  # their scripts come from elsewhere, which the page's policy forbids
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    errors.install(app)
    for router in (
        static.routes(),
        routes_info.routes(context),
        routes_search.routes(context),
        routes_items.routes(context),
    ):
        app.include_router(router)
    app.add_middleware(GuardMiddleware, hosts=hosts, limits=context.limits, metrics=context.metrics)
    return app
