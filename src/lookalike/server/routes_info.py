"""Information about the server: ``/healthz``, ``/metrics``, ``/model``, ``/labels`` and ``/map``."""

from pathlib import Path
from typing import Any

import yaml
from fastapi import APIRouter, Request, Response

from lookalike._util.untrusted import read_json, read_yaml
from lookalike.inference.model import TrainedModel
from lookalike.server.context import Context
from lookalike.server.errors import responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.metrics import CONTENT_TYPE
from lookalike.server.schemas import Health, IndexCard, LabelCount, Labels, Map, ModelCard

METRICS_RESPONSE = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}


def routes(context: Context) -> APIRouter:
    """Create the routes that describe server, model and collection.

    Args:
        context: Shared state of the server.

    Returns:
        The router.
    """
    router = APIRouter(tags=["about"])
    idx = context.collection.idx
    seconds = context.limits.seconds
    can_read = [context.requires(Access.READ)]
    card = model_card(idx.path, idx.about.run, context.model)

    @router.get("/healthz", responses=responses(504), summary="Alive?")
    async def healthz(request: Request) -> Health:
        """Report that the server is alive. Without a key, where keys are configured, it reports nothing else."""
        if context.access.grant(request).access is Access.NONE:
            return Health(items=None, model=None)
        items = await with_timeout(seconds, context.in_index(idx.count))
        return Health(items=items, model=idx.fingerprint)

    @router.get(
        "/metrics",
        dependencies=can_read,
        response_class=Response,
        responses={200: METRICS_RESPONSE, **responses(401, 504)},
        summary="Metrics",
    )
    async def metrics() -> Response:
        """Report metrics in the Prometheus text format."""
        items = await with_timeout(seconds, context.in_index(idx.count))
        return Response(context.metrics.text(items), headers={"Content-Type": CONTENT_TYPE})

    @router.get("/model", dependencies=can_read, responses=responses(401, 504), summary="The model's card")
    async def model() -> ModelCard:
        """Describe the model and its index."""
        info = await with_timeout(seconds, context.in_index(idx.info))
        index = IndexCard(kind=str(info["kind"]), count=int(info["count"]), backend=str(info["backend"]))
        return ModelCard(**card, fingerprint=idx.fingerprint, has_weights=context.model.has_weights, index=index)

    @router.get("/labels", dependencies=can_read, responses=responses(401, 504), summary="Labels")
    async def labels() -> Labels:
        """List all labels with the number of their items, most frequent first."""
        counts = await with_timeout(seconds, context.in_index(idx.labels))
        ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return Labels(labels=[LabelCount(label=label, count=count) for label, count in ordered])

    @router.get("/map", dependencies=can_read, responses=responses(401, 504), summary="A map of the collection")
    async def map_() -> Map:
        """Place items in the unit square, similar ones close together; at most 2,000 of them."""
        return await with_timeout(seconds, context.in_index(context.collection.map))

    return router


def model_card(index_folder: Path, run: str, model: TrainedModel) -> dict[str, Any]:
    """Describe a model from the files in the folder of its index.

    Args:
        index_folder: The folder of the index.
        run: The run that the model came from. Only its last name is shown.
        model: The loaded model.

    Returns:
        The fields of ``ModelCard`` that do not change while the server runs.
    """
    folder = index_folder / "model"
    embedder_settings = model.embedder.settings()
    data = _read(folder / "data.json")
    evaluation = _read(folder / "figures.json")
    trained_on = data.get("name") or _read(folder / "settings.yaml").get("data")
    classes = _section(data, "training").get("classes")
    steps = evaluation.get("best_step")
    metrics = {}
    for name, value in _section(evaluation, "best").items():
        if "@" in name and isinstance(value, (int, float)):
            metrics[name] = float(value)
    return {
        "name": _last_name(run),
        "backbone": str(embedder_settings["backbone"]),
        "pooling": str(embedder_settings["pooling"]["name"]),
        "dim": model.dim,
        "input_size": model.spec.size,
        "distance": model.distance,
        "trained_on": _last_name(str(trained_on)) if trained_on else None,
        "classes": len(classes) if isinstance(classes, list) else None,
        "steps": steps if isinstance(steps, int) else None,
        "figures": metrics or None,
    }


def _last_name(path: str) -> str:
    """

    Examples:
        >>> _last_name("/home/somebody/runs/birds/"), _last_name("glyphs")
        ('birds', 'glyphs')
    """
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _read(file: Path) -> dict[str, Any]:
    """Read a JSON or YAML mapping; a missing or damaged file gives an empty one."""
    try:
        content = read_yaml(file) if file.suffix == ".yaml" else read_json(file)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}
