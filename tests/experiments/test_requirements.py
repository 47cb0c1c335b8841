"""What a run needs is checked before it starts, and before any time is estimated."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from lookalike.cli import main
from lookalike.data.glyphs import glyphs
from lookalike.experiments.requirements import check_run, missing_weights
from lookalike.experiments.splits import with_fold, with_test_classes
from lookalike.models.bn_inception import BNInception
from lookalike.models.known_weights import KnownWeights
from lookalike.training.settings import Settings

DATA = "glyphs(cells=1,size=32,train_classes=8,test_classes=4,per_class=4)"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"pooling": "netvlad", "dim": 100}, "num_prototypes must divide the size of the embedding, 100"),
        ({"pooling": "otp", "dim": 100}, "num_prototypes must divide the size of the embedding, 100"),
        ({"size": 16, "backbone": "bn_inception"}, "does not take pictures of 16 pixels"),
        ({"dim": 2000, "start": "pca"}, "1280 principal directions, which cannot start 2000"),
        ({"dim": None, "pooling": "average", "freeze_backbone": True}, "nothing would be trained"),
        ({"batch_size": 6, "per_class": 4}, "batch_size must be a multiple of per_class 4"),
        ({"loss": "libc", "batch_size": 1, "per_class": 1}, "needs at least two pictures per class in a batch"),
        ({"loss": "c2", "libc": 1.0, "dim": 8, "backbone": "no_such"}, "no backbone is called 'no_such'"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(settings: dict[str, Any], reason: str) -> None:
    pictures = with_fold(
        with_test_classes(glyphs(cells=1, size=32, per_class=3, train_classes=8, test_classes=4)), 0, 4
    )
    with pytest.raises(ValueError, match=reason):
        check_run(Settings(**settings), pictures)


def test_libc_needs_classes() -> None:
    pictures = with_fold(
        with_test_classes(glyphs(cells=1, size=32, per_class=3, train_classes=2, test_classes=4)), 0, 2
    )
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        check_run(Settings(loss="libc", freeze_backbone=True, batch_size=3, per_class=3), pictures)


def test_missing_and_wrong_weights_are_named_once_with_a_way_to_get_them(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "resnet18.pth")
    torch.save(BNInception().state_dict(), tmp_path / "good.pth")
    problems = missing_weights(
        [
            ("bn_inception", "auto"),
            ("bn_inception", "auto"),
            ("bn_inception", str(tmp_path / "resnet18.pth")),
            ("bn_inception", str(tmp_path / "good.pth")),
            ("bn_inception", str(tmp_path / "nowhere.pth")),
            ("resnet50", "timm"),
            ("resnet20", "auto"),
            ("efficientnet_lite0", "auto"),
        ]
    )
    missing, wrong, nowhere = problems
    assert "bn_inception-52deb4733.pth (45.3 MB): http://data.lip6.fr" in missing
    assert "--set weights=FILE" in missing
    assert wrong.endswith("they fit resnet18")
    assert "there is no file" in nowhere


def test_a_plan_stops_before_its_estimate_if_something_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["benchmark", "--protocol", "fair", "--out", str(tmp_path / "out"), "--plan"]
    assert main([*command, "--data", DATA]) == 2
    printed = capsys.readouterr().err
    assert "2 rows, 24 models" in printed
    assert "no weights of bn_inception come with a package" in printed
    assert "1,000 steps" not in printed
    assert main([*command, "--data", f"nowhere,cub:{tmp_path}"]) == 2
    printed = capsys.readouterr().err
    assert "there is no folder, CSV or data set 'nowhere'" in printed
    assert "does not hold CUB-200-2011" in printed
    assert "no weights of bn_inception come with a package" in printed
    assert not (tmp_path / "out").exists()


def test_fair_evaluation_starts_with_converted_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In miniature: two steps on small pictures, with random weights in the published format."""
    state: dict[str, torch.Tensor] = {"last_linear.weight": torch.zeros(1000, 1024)}
    for name, value in BNInception().state_dict().items():
        state[name] = value[None] if "_bn." in name and value.dim() == 1 else value
    torch.save(state, tmp_path / "published.pth")
    weights = tmp_path / "converted.safetensors"
    convert = ["weights", "convert", str(tmp_path / "published.pth"), "--backbone", "bn_inception"]
    assert main([*convert, "--out", str(weights)]) == 0
    published = hashlib.sha256((tmp_path / "published.pth").read_bytes()).hexdigest()
    known = KnownWeights("bn_inception", "published.pth", 45.3, "http://somewhere", published)
    monkeypatch.setattr("lookalike.models.known_weights.FILES", (known,))
    protocol = tmp_path / "small.yaml"
    protocol.write_text("base: fair\nsplit: {folds: 4, models: 1, steered_by: validation}\nrepeats: 1\n")
    settings = f"weights={weights}, steps=2, evaluate_every=1, batch_size=8, size=64, resize=64, workers=0"
    command = ["benchmark", "--protocol", str(protocol), "--data", DATA, "--out", str(tmp_path / "out")]
    command += ["--losses", "c2", "--poolings", "gsp", "--methods", "zero-shot", "--set", settings, "--json"]
    capsys.readouterr()
    assert main(command) == 0
    [cell] = json.loads(capsys.readouterr().out)["cells"]
    assert cell["standing"] == "done"
    [result] = (tmp_path / "out").glob("cells/*/result.json")
    known_weights = json.loads(result.read_text())["known_weights"]
    assert known_weights == {"file": "published.pth", "trained_on": "ImageNet"}  # so that no report marks them
