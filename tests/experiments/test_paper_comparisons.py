"""The papers' comparisons, started in miniature: every row of the command trains and is tested."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lookalike.cli import main
from lookalike.data.collage import SUPER_CLASSES
from lookalike.experiments.protocol import load_protocol

LETTERS = "glyphs(cells=1,size=32,train_classes=8,test_classes=4,per_class=4)"
SMALL = "backbone=resnet8-half, size=32, lr=0.001, crop=none, batch_size=16, per_class=2, steps=9, evaluate_every=8"
SMALL += ", warm_up=0, workers=0, device=cpu"


def miniature(tmp_path: Path, base: str) -> Path:
    """One model for each row, and prototypes that start from few pictures."""
    text = f"base: {base}\nsplit: {{folds: 4, models: 1}}\nrepeats: 1\nreport: mean\npooling:\n"
    for pooling in ("gsp", "otp"):
        text += f"  {pooling}: {{pooling_settings: {{memory: 128}}}}\n"
    path = tmp_path / "miniature.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def rows(out: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for file in out.glob("cells/*/result.json"):
        result = json.loads(file.read_text())
        found[result["title"]] = result
    return found


def test_the_comparison_of_poolings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "--protocol", str(miniature(tmp_path, "poolings"))]
    words += ["--data", LETTERS, "--out", str(tmp_path / "out"), "--set", SMALL]
    assert main([*words, "--plan"]) == 0
    plan = capsys.readouterr().err
    assert "38 rows, 38 models" in plan
    assert "not as printed: freeze_batch_norm: the backbone" in plan
    assert "not as printed: crop:" not in plan  # crop=none undoes it
    assert "warning: resnet8-half starts from random weights; --set weights=FILE" in plan
    assert "not as printed: cbam:" in plan
    assert "not as printed: memory:" not in plan
    assert main([*words, "--losses", "c2"]) == 0
    assert main([*words, "--losses", "proxy-nca++", "--poolings", "gsp,gsop,otp(num_prototypes=64, dim=8192)"]) == 0
    results = rows(tmp_path / "out")
    titles = [f"c2 + {choice}" for choice in load_protocol("poolings").pooling_choices]
    titles += [f"proxy-nca++ + {choice}" for choice in ("gsp", "gsop", "otp(dim=8192, num_prototypes=64)")]
    assert sorted(results) == sorted(titles)
    for title, result in results.items():
        assert result["dim"] == (8192 if "dim=8192" in title else 128)
        assert 0 <= result["test"]["MAP@R"] <= 1
    assert main(["report", str(tmp_path / "out")]) == 0


def test_the_comparison_of_poolings_on_the_collage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = sorted(name for members in SUPER_CLASSES.values() for name in members)
    for number, name in enumerate(names):
        for picture in range(4):
            folder = tmp_path / "cifar100" / ("train" if picture < 3 else "test") / name
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (2 * number, 40 * picture, 99)).save(folder / f"{picture}.png")
    protocol = miniature(tmp_path, "collage")
    protocol.write_text(protocol.read_text().replace("split: {folds: 4, models: 1}\n", ""))
    words = ["benchmark", "--protocol", str(protocol), "--out", str(tmp_path / "out")]
    words += ["--data", f"collage({tmp_path / 'cifar100'}, split=3/2, order=listed, pictures=12/8)"]
    words += ["--set", "backbone=resnet8-half, steps=2, evaluate_every=2, workers=0, device=cpu"]
    assert main([*words, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["cells"]) == 38
    assert plan["impossible"] == []
    assert "as in the released code; printed: 2/1/2" in plan["deviations"]["collages"]
    assert "backbone" not in plan["deviations"]
    started = ["--poolings", "gsop,otp,gsp,netvlad(num_prototypes=64, dim=8192)"]
    assert main([*words, *started]) == 0
    results = rows(tmp_path / "out")
    assert len(results) == 8
    for result in results.values():
        assert result["held_out"] == {}  # nothing steers
        assert result["best_step"] == result["steps"] == 2
    assert main(["report", str(tmp_path / "out")]) == 0


def test_gsp_and_libc_with_and_without_messages_at_test(tmp_path: Path) -> None:
    words = ["benchmark", "--protocol", str(miniature(tmp_path, "libc")), "--data", LETTERS]
    words += ["--losses", "libc(heads=2), libc(heads=2, message_passing=3)", "--out", str(tmp_path / "out")]
    words += ["--set", f"{SMALL}, dim=16, restarts=[4], reshape=false"]
    assert main(words) == 0
    results = rows(tmp_path / "out")
    assert len(results) == 6
    for pooling in ("max", "weighted-max+gsp", "max+gsp"):
        encoder = results[f"libc(heads=2) + {pooling}"]
        passing = results[f"libc(heads=2, message_passing=3) + {pooling}"]
        assert encoder["held_out"] == passing["held_out"]  # trained in the same way
        assert encoder["test"] != passing["test"]
