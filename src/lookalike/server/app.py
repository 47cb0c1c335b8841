"""The server as one ASGI application."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from lookalike import __version__
from lookalike.index.base import Index
from lookalike.index.layout import Choice
from lookalike.inference.picture_model import PictureModel
from lookalike.server import (
    errors,
    routes_doctor,
    routes_export,
    routes_improve,
    routes_info,
    routes_items,
    routes_labels,
    routes_map,
    routes_marks,
    routes_search,
    static,
)
from lookalike.server.context import Context
from lookalike.server.keys import Keys
from lookalike.server.limits import Limits
from lookalike.server.middleware import LOOPBACK_NAMES, GuardMiddleware
from lookalike.server.quotas import Buckets, Quota

DESCRIPTION = """Search a collection of pictures by visual similarity. Errors are
`{"error": {"code": "...", "message": "one line"}}`. If keys are configured, send one in the header `X-API-Key`."""


def create_app(
    idx: Index,
    model: PictureModel,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    quota: Quota | None = None,
    hosts: Collection[str] | None = LOOPBACK_NAMES,
    proxies: Collection[str] = (),
    buckets: Buckets | None = None,
    read_only: bool = False,
    previous: FastAPI | None = None,
    layout: Choice = "auto",
    others: Mapping[str, tuple[Index, PictureModel]] | None = None,
) -> FastAPI:
    """Create the server of one index.

    Args:
        idx: The index to serve. The caller closes it after the app has shut down.
        model: The model that the index was made with.
        keys: Read and write keys. Without keys, everybody who reaches the server may read and write.
        limits: Bounds on memory, time and work per process.
        quota: What one key may do per minute; without keys, what one address may do.
        hosts: Accepted names in the ``Host`` header, without port. None accepts any; use that only with keys.
        proxies: Addresses of proxies. Their ``X-Forwarded-For`` says who the client is; nobody else's does.
        buckets: Where quotas are counted; None for the memory of this process.
        read_only: Refuse additions and deletions, with every key.
        previous: The app of an earlier version of the index. Quotas, metrics and processes are taken over from it.
        layout: How the map is arranged: "umap", "tsne", "pca", or "auto" for the best that is installed.
        others: Second models by name, each with the collection as ``Index.open_model`` gives it.

    Returns:
        The ASGI application.

    Raises:
        WrongModel: If ``model`` is not the model of the index.
    """
    taken_over: Context | None = previous.state.context if previous is not None else None
    context = Context(
        idx,
        model,
        keys or Keys(),
        limits or Limits(),
        quota or Quota(),
        proxies,
        buckets,
        read_only,
        taken_over,
        layout=layout,
        others=others,
    )

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
    app.include_router(routes_map.routes(context))
    app.include_router(routes_search.routes(context))
    app.include_router(routes_items.routes(context))
    app.include_router(routes_export.routes(context))
    app.include_router(routes_marks.routes(context))
    app.include_router(routes_labels.routes(context))
    app.include_router(routes_improve.routes(context))
    app.include_router(routes_doctor.routes(context))
    app.add_middleware(
        GuardMiddleware,
        hosts=hosts,
        limits=context.limits,
        metrics=context.metrics,
        client_of=context.client_of,
    )
    return app
