"""``/improve``: train the model on marks and labels, watch it, stop it, and return to the model before."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from lookalike.index.job_status import Status
from lookalike.index.storage import About
from lookalike.server.context import Context
from lookalike.server.errors import responses, with_timeout
from lookalike.server.keys import Access


class Improvement(BaseModel):
    """Answer of ``GET /improve``."""

    state: Literal["never", "running", "installed", "kept", "rolled back", "done", "failed", "stopped"] = Field(
        description="kept: the new model was worse, so the old one stays"
    )
    stage: str = Field(description="what it is doing")
    done: int = Field(description="finished units of the stage")
    total: int = Field(description="all units of the stage; 0 if there is nothing to count")
    message: str = Field(description="the outcome in one sentence")
    report: dict[str, Any] = Field(description="figures before and after, when it has finished")
    can_roll_back: bool = Field(description="whether there is an earlier model")


class Started(BaseModel):
    """Answer of ``POST /improve``."""

    started: Literal[True] = True


class Stopping(BaseModel):
    """Answer of ``DELETE /improve``."""

    stopping: Literal[True] = True


def routes(context: Context) -> APIRouter:
    """Create the routes that improve the model.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["improve"])
    seconds = context.limits.seconds
    improver = context.improver
    can_read = [context.requires(Access.READ)]
    can_write = [context.requires(Access.WRITE, changes=True)]

    @router.get("/improve", dependencies=can_read, responses=responses(401, 504), summary="Progress and figures")
    async def status() -> Improvement:
        """Report the progress of an improvement, or the outcome of the last one."""
        return await with_timeout(seconds, context.in_index(lambda: _answer(improver.status(), improver.path)))

    @router.post(
        "/improve", status_code=202, dependencies=can_write, responses=responses(401, 409, 504), summary="Improve"
    )
    async def start() -> Started:
        """Start training on marks and labels in another process. The server goes on answering with the old model."""
        await with_timeout(seconds, context.in_index(improver.start))
        return Started()

    @router.post(
        "/improve/rollback",
        status_code=202,
        dependencies=can_write,
        responses=responses(401, 409, 504),
        summary="Return to the model before",
    )
    async def roll_back() -> Started:
        """Start to return to the model before the last improvement."""
        await with_timeout(seconds, context.in_index(improver.roll_back))
        return Started()

    @router.delete("/improve", dependencies=can_write, responses=responses(401, 409, 504), summary="Stop improving")
    async def cancel() -> Stopping:
        """Stop the improvement. Nothing has changed then, unless the new model was installed already."""
        await with_timeout(seconds, context.in_index(improver.cancel))
        return Stopping()

    return router


def _answer(status: Status, path: Any) -> Improvement:
    return Improvement(
        state=status.state,
        stage=status.stage,
        done=status.done,
        total=status.total,
        message=status.message,
        report=status.report,
        can_roll_back=bool(About.read(path).previous),
    )
