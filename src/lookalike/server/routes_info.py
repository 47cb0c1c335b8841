"""What the server says of itself: ``/healthz``, ``/metrics``, ``/model``, ``/labels`` and ``/map``."""

import json
from pathlib import Path
from typing import Any

import yaml
from fastapi import APIRouter, Request, Response

from lookalike.inference.model import TrainedModel
from lookalike.server.context import Context
from lookalike.server.errors import responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.metrics import CONTENT_TYPE
from lookalike.server.schemas import Health, IndexCard, LabelCount, Labels, Map, ModelCard


def routes(context: Context) -> APIRouter:
    router = APIRouter(tags=["about"])
    idx, seconds = context.collection.idx, context.limits.seconds
    reading = [context.requires(Access.READ)]
    card = model_card(idx.path, idx.about.run, context.model)

    @router.get("/healthz", responses=responses(504), summary="Alive?")
    async def healthz(request: Request) -> Health:
        """Needs no key; says less without one."""
        if context.access(request) is Access.NONE:
            return Health(items=None, model=None)
        return Health(items=await with_timeout(seconds, context.in_index(idx.count)), model=idx.fingerprint)

    @router.get(
        "/metrics",
        dependencies=reading,
        response_class=Response,
        responses={
            200: {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **responses(401, 504),
        },
        summary="Metrics",
    )
    async def metrics() -> Response:
        items = await with_timeout(seconds, context.in_index(idx.count))
        return Response(context.metrics.text(items), headers={"Content-Type": CONTENT_TYPE})

    @router.get("/model", dependencies=reading, responses=responses(401, 504), summary="The model's card")
    async def model() -> ModelCard:
        info = await with_timeout(seconds, context.in_index(idx.info))
        index = IndexCard(kind=str(info["kind"]), count=int(info["count"]), backend=str(info["backend"]))
        return ModelCard(**card, fingerprint=idx.fingerprint, has_weights=context.model.has_weights, index=index)

    @router.get("/labels", dependencies=reading, responses=responses(401, 504), summary="Labels")
    async def labels() -> Labels:
        """All labels with the number of their items, most first."""
        found = await with_timeout(seconds, context.in_index(idx.labels))
        ordered = sorted(found.items(), key=lambda each: (-each[1], each[0]))
        return Labels(labels=[LabelCount(label=label, count=count) for label, count in ordered])

    @router.get("/map", dependencies=reading, responses=responses(401, 504), summary="A map of the collection")
    async def map_() -> Map:
        """Items as points in the unit square, near each other if they look alike; at most 2,000 of them."""
        return await with_timeout(seconds, context.in_index(context.collection.map))

    return router


def model_card(home: Path, origin: str, model: TrainedModel) -> dict[str, Any]:
    """What the folder of an index tells of its model; of folders of this machine only the last name."""
    settings = model.embedder.settings()
    run = _read(home / "model" / "settings.yaml")
    data, figures = _read(home / "model" / "data.json"), _read(home / "model" / "figures.json")
    training, best = _part(data, "training"), _part(figures, "best")
    trained_on = data.get("name") or run.get("data")
    return {
        "name": _last(origin),
        "backbone": str(settings["backbone"]),
        "pooling": str(settings["pooling"]["name"]),
        "dim": model.dim,
        "input_size": model.spec.size,
        "distance": model.distance,
        "trained_on": _last(str(trained_on)) if trained_on else None,
        "classes": len(training["classes"]) if isinstance(training.get("classes"), list) else None,
        "steps": figures.get("best_step") if isinstance(figures.get("best_step"), int) else None,
        "figures": {k: float(v) for k, v in best.items() if "@" in k and isinstance(v, (int, float))} or None,
    }


def _last(path: str) -> str:
    """
    >>> _last("/home/somebody/runs/birds/"), _last("glyphs")
    ('birds', 'glyphs')
    """
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    part = content.get(name)
    return part if isinstance(part, dict) else {}


def _read(file: Path) -> dict[str, Any]:
    """What is missing or damaged tells nothing."""
    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
