"""A benchmark of four trainings that take a second, as typed."""

import json
from pathlib import Path
from typing import Any

DATA = "glyphs(cells=1,size=32,train_classes=8,test_classes=4,per_class=4)"
SMALL = "backbone=resnet8-half, size=32, start=random, freeze_backbone=false, lr=0.001, crop=none, workers=0"
SMALL += ", batch_size=8, dim=8, device=cpu"


def words(out: Path, *more: str, steps: int = 32) -> list[str]:
    settings = f"{SMALL}, steps={steps}, evaluate_every=4"
    return ["benchmark", "--data", DATA, "--out", str(out), "--set", settings, "--seeds", "2", *more]


def metrics(out: Path) -> dict[str, Any]:
    """Test metrics of every cell."""
    cells = {}
    for file in sorted(out.glob("cells/*/result.json")):
        result = json.loads(file.read_text())
        cells[f"{result['title']} {result['repeat']}"] = result["test"]
    return cells
