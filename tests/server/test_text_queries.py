"""Queries by text, with a tiny two-tower model of random weights, against open_clip itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from lookalike import index
from lookalike.cli import main
from lookalike.inference.model import load, untrained
from lookalike.models import create_backbone
from lookalike.models.text_names import text_refusal
from lookalike.server import create_app

open_clip = pytest.importorskip("open_clip", reason="needs the extra text")
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
NAME = "open_clip:tiny-towers"
WORDS = "a picture with narrow stripes"


@pytest.fixture(scope="module")
def towers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model of open_clip itself, known to it by a name."""
    import torch

    folder = tmp_path_factory.mktemp("configs")
    (folder / "tiny-towers.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(folder)
    torch.manual_seed(0)
    return open_clip.create_model("tiny-towers", load_weights=False).eval()


@pytest.fixture(scope="module")
def weights(towers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "towers.safetensors"
    save_file({name: value.contiguous() for name, value in towers.state_dict().items()}, file)
    return file


@pytest.fixture(scope="module")
def worded(weights: Path, class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("indexes") / "worded.idx"
    words = ["index", NAME, str(class_folders), "--out", str(out), "--weights", str(weights)]
    assert main([*words, "--engine", "torch", "--cache", "none"]) == 0
    return out


def by_open_clip(towers: Any, text: str) -> np.ndarray:
    import torch

    with torch.no_grad():
        vector = towers.encode_text(open_clip.get_tokenizer("tiny-towers")([text]), normalize=True)
    return vector[0].numpy()


def ranked(idx: index.Index, query: np.ndarray, k: int) -> list[str]:
    items = idx.items()
    cosines = idx.vectors([item.id for item in items]) @ query
    return [items[row].id for row in np.argsort(-cosines, kind="stable")[:k]]


def test_vectors_equal_open_clip(towers: Any, worded: Path, class_folders: Path) -> None:
    import torch
    from torchvision.transforms.functional import normalize as standardise

    model = load(worded / "model", "cpu", "torch")
    np.testing.assert_allclose(model.embed_text([WORDS, "red"])[0], by_open_clip(towers, WORDS), atol=1e-5)
    picture = class_folders / "class4" / "1.png"
    pixels = torch.from_numpy(model.preprocess.read_crop(picture)).permute(2, 0, 1)[None] / 255
    settings = towers.visual.preprocess_cfg
    with torch.no_grad():
        expected = towers.encode_image(standardise(pixels, settings["mean"], settings["std"]), normalize=True)
    np.testing.assert_allclose(model.embed(picture), expected.numpy(), atol=1e-5)
    with index.open(worded) as idx:
        np.testing.assert_allclose(idx.vectors([index.file_id(picture)]), expected.numpy(), atol=1e-5)


def test_the_command(towers: Any, worded: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with index.open(worded) as idx:
        expected = ranked(idx, by_open_clip(towers, WORDS), 6)
        inside = ranked(idx, by_open_clip(towers, WORDS), 64)
        inside = [item_id for item_id in inside if idx.get([item_id])[0].label == "class2"]  # type: ignore[union-attr]
    page = tmp_path / "found.html"
    assert main(["search", str(worded), "--text", WORDS, "-k", "6", "--json", "--html", str(page)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [hit["id"] for hit in report["hits"]] == expected
    assert (report["text"], report["picture"]) == (WORDS, None)
    assert f"Pictures for: {WORDS}" in page.read_text()
    assert main(["search", str(worded), "--text", WORDS, "--where", "label=class2", "--json"]) == 0
    assert [hit["id"] for hit in json.loads(capsys.readouterr().out)["hits"]] == inside
    assert main(["search", str(worded), "--text", "  "]) == 2
    assert "--text needs words" in capsys.readouterr().err


def test_over_http_and_without_a_tower(
    towers: Any, worded: Path, shared: TestClient, made_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        index.open(worded) as idx,
        TestClient(create_app(idx, idx.trained_model("cpu", "torch")), base_url="http://127.0.0.1") as client,
    ):
        assert client.get("/model").json()["text_refusal"] is None
        answer = client.post("/search", files={"text": (None, WORDS)}, data={"k": "6"}).json()
        assert [hit["id"] for hit in answer["hits"]] == ranked(idx, by_open_clip(towers, WORDS), 6)
        assert "whole picture" in answer["calibration"]
        liked = idx.items()[7].id
        both = client.post("/search", files={"text": (None, WORDS)}, data={"like": liked, "k": "64"}).json()
        unit = by_open_clip(towers, WORDS) + idx.vectors([liked])[0]
        assert [hit["id"] for hit in both["hits"]] == [i for i in ranked(idx, unit, 64) if i != liked]
        for fields, message in (
            ({"text": "x" * 1001}, "text must be at most 1,000 characters"),
            ({"text": "x", "id": liked}, "send either a picture, the id of an item, or a text"),
        ):
            refused = client.post("/search", files={name: (None, value) for name, value in fields.items()})
            assert refused.status_code == 422
            assert message in refused.json()["error"]["message"]
    refused = shared.post("/search", files={"text": (None, WORDS)})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "no_text")
    assert "resnet8-half has no text tower" in refused.json()["error"]["message"]
    assert main(["search", str(made_index), "--text", WORDS]) == 2
    assert (
        "--text does not work with this index: the backbone resnet8-half has no text tower" in capsys.readouterr().err
    )


def test_refusals(weights: Path, class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.inference.label_free import whitened

    files = sorted(class_folders.rglob("*.png"))[:20]
    model = whitened(files, NAME, weights=weights, engine="torch", view="crop")
    with pytest.raises(ValueError, match="its head was fitted on pictures alone"):
        model.embed_text([WORDS])
    with pytest.raises(ValueError, match="a text query needs words"):
        untrained(NAME, weights=weights, engine="torch").embed_text([" "])
    with pytest.raises(ValueError, match="no weights of open_clip:tiny-towers come with a package"):
        create_backbone(NAME)
    with pytest.raises(ValueError, match=r"open_clip has no model 'tiny-tower' \(did you mean 'tiny-towers'\?\)"):
        create_backbone("open_clip:tiny-tower", weights=weights)
    save_file(
        {"visual.proj": create_backbone("resnet8-half", weights="none").state_dict().popitem()[1]},
        tmp_path / "x.safetensors",
    )
    with pytest.raises(ValueError, match="the backbone open_clip:tiny-towers"):
        create_backbone(NAME, weights=tmp_path / "x.safetensors")
    settings = untrained(NAME, weights=weights, engine="torch").settings()
    assert text_refusal(settings) is None
    monkeypatch.setattr("lookalike.models.text_names.find_spec", lambda _: None)
    assert "pip install 'lookalike[text]'" in str(text_refusal(settings))
    monkeypatch.setattr("lookalike.models.two_towers.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install 'lookalike\[text\]'"):
        create_backbone(NAME, weights=weights)
