"""A model as a folder for other people: model.json, model.safetensors and the model card README.md.

``lookalike.load`` takes the folder, or its address on the hub after ``hf upload owner/name FOLDER``. The card is
written for the Hugging Face hub from the files of the run. No path of the machine it was trained on goes into it.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from lookalike._util.files import write_text
from lookalike._util.untrusted import read_json, read_yaml
from lookalike.export.facts import facts
from lookalike.models import Embedder, save_model
from lookalike.retrieval.wording import explain_metrics

CARD = "README.md"
# The training settings that the card lists.
LISTED = (
    *("loss", "preset", "loss_settings", "zero_shot", "memory", "centres", "ccp", "freeze_backbone", "train_stages"),
    *("start", "crop", "flip", "steps", "batch_size", "per_class"),
    *("optimiser", "lr", "schedule", "weight_decay", "seed"),
)

USE = """## Use

```
pip install 'lookalike[train]'
```

```python
import lookalike

model = lookalike.load("{name}")          # this folder, or "hf:owner/name"
vectors = model.embed(["a.jpg", "b.jpg"])
```"""


def write_folder(embedder: Embedder, folder: Path, run: Path | None = None) -> None:
    """Write a model folder, completely or not at all.

    Args:
        embedder: The model.
        folder: Created if it does not exist; otherwise only the three files in it are replaced.
        run: Folder of the run, for the card; None if there is none.
    """
    card = model_card(embedder, folder.resolve().name, run)
    if folder.exists():
        save_model(embedder, folder)
        write_text(folder / CARD, card)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        unfinished = Path(temporary) / folder.name
        save_model(embedder, unfinished)
        write_text(unfinished / CARD, card)
        unfinished.rename(folder)


def model_card(embedder: Embedder, name: str, run: Path | None = None) -> str:
    """Write the model card.

    Args:
        embedder: The model.
        name: Title of the card.
        run: Folder of the run; data.json, settings.yaml and figures.json in it are used if they exist.

    Returns:
        The text of README.md.
    """
    about = facts(embedder, ["vectors"])
    data = _read(run, "data.json")
    settings = _read(run, "settings.yaml")
    figures = _read(run, "figures.json")
    best = figures.get("best") or {}
    listed = {}
    for key in LISTED:
        if settings.get(key) not in (None, {}, ""):
            listed[key] = settings[key]
    sections = [
        f"---\n{_front_matter(name, about, data, best)}---\n\n# {name}",
        _summary(about),
        USE.format(name=name),
        _trained_on(data),
        _metrics(best, figures.get("backbone") or {}),
        _table("## Settings", listed),
        _preprocessing(about["preprocessing"]["steps"]),
        f"Made by {about['made_by']}. `model.safetensors` holds the weights, `model.json` the settings of the model.",
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _read(run: Path | None, name: str) -> dict[str, Any]:
    """A file of the run; empty if it does not exist or cannot be read."""
    if run is None:
        return {}
    read = read_json if name.endswith(".json") else read_yaml
    try:
        content: Any = read(run / name)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _front_matter(name: str, about: dict[str, Any], data: dict[str, Any], best: dict[str, Any]) -> str:
    """The YAML that the hub reads."""
    front: dict[str, Any] = {
        "library_name": "lookalike",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["image-retrieval", "metric-learning", "visual-search", about["pooling"]["name"], about["backbone"]],
    }
    if best:
        metrics = [{"type": key, "value": round(best[key], 4)} for key in ("MAP@R", "P@1") if key in best]
        result = {
            "task": {"type": "image-feature-extraction"},
            "dataset": {"name": f"held-out classes of {data.get('name', 'the training data')}", "type": "image"},
            "metrics": metrics,
        }
        front["model-index"] = [{"name": name, "results": [result]}]
    return str(yaml.safe_dump(front, sort_keys=False, allow_unicode=True))


def _summary(about: dict[str, Any]) -> str:
    distance = "cosine" if about["distance"] == "cosine" else "Euclidean distance"
    pooling = str(about["pooling"]["name"])
    settings = [f"{key}={value}" for key, value in about["pooling"]["settings"].items()]
    if settings:
        pooling += f" ({', '.join(settings)})"
    return (
        f"This model turns pictures into vectors of size {about['dim']}. Pictures that look alike have a small "
        f"distance, measured by the {distance}. The backbone is {about['backbone']}, the pooling {pooling}."
    )


def _trained_on(data: dict[str, Any]) -> str:
    training, held_out = data.get("training"), data.get("held_out")
    if not isinstance(training, dict):
        return ""
    text = f"## Trained on\n\n{data.get('name', 'pictures')}: {training['pictures']:,} pictures of "
    text += f"{len(training['classes']):,} classes."
    if isinstance(held_out, dict):
        text += f" Held out for validation: {held_out['pictures']:,} pictures of "
        text += f"{len(held_out['classes']):,} other classes."
    return text


def _metrics(best: dict[str, Any], backbone: dict[str, Any]) -> str:
    """Metrics of the model beside those of the frozen backbone; R@1 is P@1 and left out."""
    lines = ["## On the held-out classes\n", "| | this model | backbone alone |", "|---|---|---|"]
    names = [name for name, value in best.items() if isinstance(value, float) and name != "R@1"]
    if not names:
        return ""
    for name in names:
        before = f"{100 * backbone[name]:.2f} %" if name in backbone else "-"
        lines.append(f"| {name} | {100 * best[name]:.2f} % | {before} |")
    lines += ["", *(f"- {line}" for line in explain_metrics(names)), ""]
    lines.append("The backbone alone: its local features are averaged, without training.")
    lines.append("The best step was chosen on these classes, so the numbers are slightly too good.")
    return "\n".join(lines)


def _preprocessing(steps: list[str]) -> str:
    lines = [f"{number}. {step}" for number, step in enumerate(steps, 1)]
    return "\n".join(["## Preprocessing\n", *lines])


def _table(title: str, rows: dict[str, Any]) -> str:
    if not rows:
        return ""
    lines = [f"{title}\n", "| | |", "|---|---|"]
    for key, value in rows.items():
        text = json.dumps(value) if isinstance(value, dict) else value
        lines.append(f"| {key} | {text} |")
    return "\n".join(lines)
