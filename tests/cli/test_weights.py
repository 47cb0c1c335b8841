"""``lookalike weights``: the list, the check of a file, and the conversion."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lookalike.cli import main
from lookalike.models import create_backbone
from lookalike.models.bn_inception import BNInception


def save_cadene(path: Path) -> BNInception:
    """Random weights in the format of the published file: batch norm as (1, C), and a classifier."""
    network = BNInception()
    state = network.state_dict()
    for name, value in state.items():
        if "_bn." in name and value.dim() == 1:
            state[name] = value[None]
    state |= {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    torch.save(state, path)
    return network


def test_the_list_names_files_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)
    assert {"bn_inception", "resnet50", "resnet50-keras", "mobilenetv2_100"} <= {file["backbone"] for file in files}
    assert all(file["source"] and file["megabytes"] > 0 for file in files)
    assert main(["weights", "--backbone", "bn_inception"]) == 0
    printed = capsys.readouterr().out
    assert "52deb473314542a5" in printed
    assert "resnet" not in printed


def test_check_and_convert_a_published_bn_inception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = save_cadene(tmp_path / "published.pth")
    assert main(["weights", "check", str(tmp_path / "published.pth")]) == 0
    assert "published.pth fits bn_inception: 483 of its 485 tensors are used" in capsys.readouterr().out
    out = tmp_path / "converted.safetensors"
    command = ["weights", "convert", str(tmp_path / "published.pth"), "--backbone", "bn_inception", "--out", str(out)]
    assert main(command) == 0
    assert out.stat().st_mode & 0o044
    converted = load_file(out)
    assert not [name for name in converted if name.startswith("last_linear")]
    backbone = create_backbone("bn_inception", weights=out)
    for name, value in backbone.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name])
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["backbone"] == "bn_inception"


def test_the_wrong_network_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "published.pth")
    save_cadene(tmp_path / "published.pth")
    assert main(["weights", "check", file, "--backbone", "resnet18"]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["weights", "check", file, "--backbone", "resnet18", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["fits"]
    assert report["missing"][0] == "conv1.weight"
    assert report["problem"].endswith("they fit bn_inception")
    assert main(["weights", "convert", file, "--backbone", "resnet18", "--out", str(tmp_path / "a.safetensors")]) == 2
    assert "they fit bn_inception" in capsys.readouterr().err
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["chek", "x"], "there is no 'weights chek' (did you mean 'check'?)"),
        (["check"], "missing FILE"),
        (["check", "nowhere.pth"], "there is no file nowhere.pth"),
        (["convert", "x.pth"], "--out must name a file that ends in .safetensors, got nothing"),
        (["convert", "x.pth", "--out", "y.pth"], "--out must name a file that ends in .safetensors, got y.pth"),
        (["check", "x.pth", "--backbone", "resnet5O"], "no backbone is called 'resnet5O'"),
    ],
)
def test_bad_usage_says_what_to_do(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", *words]) == 2
    assert expected in capsys.readouterr().err
