"""Information about the server: health, readiness, metrics, the model, labels and fields."""

from pathlib import Path
from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Query, Request, Response

from lookalike._util.untrusted import read_json, read_yaml
from lookalike.inference.picture_model import PictureModel
from lookalike.server.context import Context, as_json
from lookalike.server.errors import RETRY, ApiError, responses, with_timeout
from lookalike.server.keys import Access
from lookalike.server.metrics import CONTENT_TYPE
from lookalike.server.schemas import Alive, Health, IndexCard, LabelCount, Labels, MetadataFields, ModelCard, Ready

READY_SECONDS = 5.0
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
    cards = {}
    for served in context.served.values():
        own = served.collection.idx
        cards[served.name] = model_card(own.home, own.about.run, served.model)

    @router.get("/health", responses=responses(), summary="Alive?")
    async def health() -> Alive:
        """Report that the process answers. A server that does not should be started again."""
        return Alive()

    @router.get("/ready", responses=responses(), summary="Ready?")
    async def ready() -> Ready:
        """Report that searches can be answered: the index can be read, and the model's queue has room. Else 503."""
        context.first.refuse_if_full()
        try:
            await with_timeout(min(seconds, READY_SECONDS), context.in_index(idx.count))
        except ApiError:
            raise ApiError(503, "unavailable", "the index is unavailable: try again later", RETRY) from None
        return Ready(writes=not context.read_only)

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
    async def model(
        request: Request, model: Annotated[str | None, Query(description="name of a model; the first")] = None
    ) -> ModelCard:
        """Describe a model and its index."""
        served = context.choose(model)
        info = await with_timeout(seconds, context.in_index(served.collection.idx.info))
        index = IndexCard(kind=str(info["kind"]), count=int(info["count"]), backend=str(info["backend"]))
        calibration = await with_timeout(seconds, context.in_index(served.collection.calibration))
        note = None if calibration is None else calibration.describe()
        return ModelCard(
            **cards[served.name],
            fingerprint=served.collection.idx.fingerprint,
            calibration=note,
            may_write=context.access.grant(request).access >= Access.WRITE,
            models=list(context.served),
            index=index,
        )

    @router.get(
        "/labels", response_model=Labels, dependencies=can_read, responses=responses(401, 504), summary="Labels"
    )
    async def labels() -> Response:
        """List all labels with the number of their items, most frequent first."""

        def count_labels() -> Labels:
            ordered = sorted(idx.labels().items(), key=lambda entry: (-entry[1], entry[0]))
            return Labels(labels=[LabelCount(label=label, count=count) for label, count in ordered])

        return await with_timeout(seconds, context.scan(as_json, count_labels))

    @router.get(
        "/fields",
        response_model=MetadataFields,
        dependencies=can_read,
        responses=responses(401, 504),
        summary="Metadata fields",
    )
    async def fields() -> Response:
        """List the most frequent metadata fields with their values or ranges, for filters."""

        def list_fields() -> MetadataFields:
            return MetadataFields(fields=context.collection.fields())

        return await with_timeout(seconds, context.scan(as_json, list_fields))

    return router


def model_card(index_folder: Path, run: str, model: PictureModel) -> dict[str, Any]:
    """Describe a model from the files in the folder of its index.

    Args:
        index_folder: The folder of the index, or of its current version.
        run: The run that the model came from. Only its last name is shown.
        model: The loaded model.

    Returns:
        The fields of ``ModelCard`` that do not change while the server runs.
    """
    folder = index_folder / "model"
    model_settings = model.settings()
    data = _read(folder / "data.json")
    evaluation = _read(folder / "figures.json")
    trained_on = data.get("name") or _read(folder / "settings.yaml").get("data")
    classes = _section(data, "training").get("classes")
    steps = evaluation.get("best_step")
    metrics = _metrics(_section(evaluation, "best"))
    return {
        "name": _last_name(run),
        "backbone": str(model_settings["backbone"]),
        "pooling": str(model_settings["pooling"]["name"]),
        "dim": model.dim,
        "input_size": model.spec.size,
        "view": "whole" if model.spec.sees_whole else "crop",
        "distance": model.distance,
        "trained_on": _last_name(str(trained_on)) if trained_on else None,
        "classes": len(classes) if isinstance(classes, list) else None,
        "steps": steps if isinstance(steps, int) else None,
        "figures": metrics or None,
        "has_weights": model.has_weights,
        "can_match": model.can_match,
        "text_refusal": model.text_refusal,
        "baseline": _metrics(_section(evaluation, "backbone")) or None,
    }


def _metrics(section: dict[str, Any]) -> dict[str, float]:
    metrics = {}
    for name, value in section.items():
        if "@" in name and isinstance(value, (int, float)):
            metrics[name] = float(value)
    return metrics


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
