"""The server as one ASGI application."""

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
from lookalike.server.quotas import Quota

DESCRIPTION = """Search a collection of pictures by visual similarity. Errors are
`{"error": {"code": "...", "message": "one line"}}`. If keys are configured, send one in the header `X-API-Key`."""


def create_app(
    idx: Index,
    model: TrainedModel,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    quota: Quota | None = None,
    hosts: Collection[str] | None = LOOPBACK_NAMES,
) -> FastAPI:
    """Create the server of one index.

    Args:
        idx: The index to serve. The caller closes it after the app has shut down.
        model: The model that the index was made with.
        keys: Read and write keys. Without keys, everybody who reaches the server may read and write.
        limits: Bounds on memory, time and work per process.
        quota: What one key may do per minute; without keys, what one address may do.
        hosts: Accepted names in the ``Host`` header, without port. None accepts any; use that only with keys.

    Returns:
        The ASGI application.

    Raises:
        WrongModel: If ``model`` is not the model of the index.
    """
    context = Context(idx, model, keys or Keys(), limits or Limits(), quota or Quota())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.decoder.start()  # its processes are ready before the first picture comes
        try:
            yield
        finally:
            context.close()

    app = FastAPI(
        title="lookalike",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # their scripts come from a CDN, which the content security policy forbids
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    errors.install(app)
    app.include_router(static.routes())
    app.include_router(routes_info.routes(context))
    app.include_router(routes_search.routes(context))
    app.include_router(routes_items.routes(context))
    app.add_middleware(GuardMiddleware, hosts=hosts, limits=context.limits, metrics=context.metrics)
    return app
