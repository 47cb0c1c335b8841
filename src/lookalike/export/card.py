"""The model card: a README.md as the Hugging Face hub shows it, made of what the folder of a run says about it.

No path of the machine it was trained on goes into it.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from lookalike.export.facts import facts
from lookalike.models import Embedder

# What a reader wants to know of how it was trained; the rest of settings.yaml is for going on with it.
TOLD = [
    *("loss", "preset", "loss_settings", "zero_shot", "memory", "centres", "ccp", "freeze_backbone", "train_stages"),
    *(
        "start",
        "crop",
        "flip",
        "steps",
        "batch_size",
        "per_class",
        "optimiser",
        "lr",
        "schedule",
        "weight_decay",
        "seed",
    ),
]


def model_card(embedder: Embedder, name: str, run: Path | None = None, others: dict[str, float] | None = None) -> str:
    """The text of README.md.

    run: the folder it was trained in, of which data.json, settings.yaml and figures.json are read if they are there.
    others: figures on other data, by name.
    """
    known = facts(embedder, ["vectors"])
    data, settings, figures = (_read(run, file) for file in ("data.json", "settings.yaml", "figures.json"))
    best = figures.get("best") or {}
    front = {
        "library_name": "lookalike",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["image-retrieval", "metric-learning", "visual-search", known["pooling"]["name"], known["backbone"]],
    }
    if best:
        front["model-index"] = [{"name": name, "results": [_result(data, best)]}]
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n# {name}",
        f"Pictures to vectors of size {known['dim']}, to be compared by the {_distance(known['distance'])}: what looks "
        f"alike lies close together. The backbone is {known['backbone']}, the pooling {_pooling(known['pooling'])}.",
        "## Use\n\n```\npip install 'lookalike[train]'\n```\n\n```python\nimport lookalike\n\n"
        f'model = lookalike.load("{name}")          # this folder, or "hf:owner/name"\n'
        'vectors = model.embed(["a.jpg", "b.jpg"])\n```',
        _trained_on(data),
        _figures(best),
        _table("## Measured on other data", others or {}),
        _table("## Settings", {key: settings[key] for key in TOLD if settings.get(key) not in (None, {}, "")}),
        "## Preprocessing\n\n" + "\n".join(f"{i}. {step}" for i, step in enumerate(known["preprocessing"]["steps"], 1)),
        f"Made by {known['made_by']}. `model.safetensors` holds the weights, `model.json` what they belong to.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _read(run: Path | None, name: str) -> dict[str, Any]:
    """A file of the run, or nothing: a model may come without any of them."""
    try:
        text = (run / name).read_text(encoding="utf-8") if run is not None else ""
        content: Any = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _result(data: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """One entry of the hub's model index."""
    return {
        "task": {"type": "image-feature-extraction"},
        "dataset": {"name": f"held-out classes of {data.get('name', 'the training data')}", "type": "image"},
        "metrics": [{"type": key, "value": round(best[key], 4)} for key in ("MAP@R", "P@1") if key in best],
    }


def _trained_on(data: dict[str, Any]) -> str:
    training, held_out = data.get("training"), data.get("held_out")
    if not isinstance(training, dict):
        return ""
    text = f"## Trained on\n\n{data.get('name', 'pictures')}: {training['pictures']:,} pictures of "
    text += f"{len(training['classes']):,} classes."
    if isinstance(held_out, dict):
        text += (
            f" Held out to choose by: {held_out['pictures']:,} pictures of {len(held_out['classes']):,} other classes."
        )
    return text


def _figures(best: dict[str, Any]) -> str:
    shown = {key: f"{100 * value:.2f} %" for key, value in best.items() if isinstance(value, float)}
    text = _table("## On the classes held out", shown)
    if not text:
        return ""
    return f"{text}\n\nThese classes chose when to stop, so the figures are a little too good."


def _table(title: str, rows: dict[str, Any]) -> str:
    lines = [f"| {key} | {json.dumps(value) if isinstance(value, dict) else value} |" for key, value in rows.items()]
    return "\n".join([f"{title}\n", "| | |", "|---|---|", *lines]) if lines else ""


def _pooling(pooling: dict[str, Any]) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in pooling["settings"].items())
    return f"{pooling['name']} ({settings})" if settings else str(pooling["name"])


def _distance(distance: str) -> str:
    return "cosine" if distance == "cosine" else "Euclidean distance"
