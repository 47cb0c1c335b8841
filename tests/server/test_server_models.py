"""Two models on one server: each answers by its own vectors, and added pictures get vectors of both."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from server_helpers import encoded, noise

from lookalike import index
from lookalike.cli import main
from lookalike.index.base import SecondIndex
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone
from lookalike.server import create_app


@pytest.fixture(scope="module")
def other_model() -> TrainedModel:
    import torch

    torch.manual_seed(4)
    backbone = create_backbone("resnet8-half", weights="none")
    embedder = Embedder(backbone, dim=6, pooling="gsop", input_spec=backbone.spec.resized(32))
    return TrainedModel(embedder, "torch", source="runs/plain")


@pytest.fixture
def second(idx: index.Index, other_model: TrainedModel) -> Iterator[SecondIndex]:
    with index.add_model(idx, other_model, engine="torch") as made:
        assert index.fill(made, other_model) == []
        yield made


@pytest.fixture
def both(
    idx: index.Index, second: SecondIndex, served_model: TrainedModel, other_model: TrainedModel
) -> Iterator[TestClient]:
    app = create_app(idx, served_model, others={"plain": (second, other_model)})
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def test_each_model_answers(
    both: TestClient,
    idx: index.Index,
    second: SecondIndex,
    served_model: TrainedModel,
    other_model: TrainedModel,
    upload: bytes,
    tmp_path: Path,
) -> None:
    (tmp_path / "upload.png").write_bytes(upload)
    for name, searched, model in (
        ("striped", idx, served_model),
        ("plain", second, other_model),
        ("", idx, served_model),
    ):
        expected = searched.search(model.embed(tmp_path / "upload.png"), 7, "n>=2")[0]
        answer = both.post("/search", files={"picture": upload}, data={"model": name, "k": "7", "where": "n>=2"}).json()
        assert [hit["id"] for hit in answer["hits"]] == [hit.item.id for hit in expected]
        assert [hit["distance"] for hit in answer["hits"]] == pytest.approx(
            [hit.distance for hit in expected], abs=1e-5
        )
        vector = both.post("/embed", files={"picture": upload}, data={"model": name}).json()["vector"]
        np.testing.assert_allclose(vector, model.embed(tmp_path / "upload.png")[0], atol=1e-5)
        by_id = both.post("/search", files={"id": (None, idx.items()[3].id)}, data={"model": name, "k": "3"}).json()
        own = searched.search(searched.vectors([idx.items()[3].id]), 4)[0][1:]
        assert [hit["id"] for hit in by_id["hits"]] == [hit.item.id for hit in own]
    assert both.get("/model").json()["models"] == ["striped", "plain"]
    card = both.get("/model", params={"model": "plain"}).json()
    assert (card["name"], card["pooling"], card["dim"]) == ("plain", "gsop", other_model.dim)
    assert card["fingerprint"] == second.fingerprint
    for path in ("/search", "/embed", "/explain", "/match"):
        refused = both.post(
            path,
            files={"picture": upload},
            data={"model": "none", "with": idx.items()[0].id} if path == "/match" else {"model": "none"},
        )
        assert (refused.status_code, refused.json()["error"]["message"]) == (422, "model must be one of striped, plain")
    assert both.post("/explain", files={"picture": upload}, data={"model": "plain"}).status_code == 409


def test_added_pictures_have_both_vectors(
    both: TestClient, idx: index.Index, second: SecondIndex, other_model: TrainedModel
) -> None:
    picture = encoded(noise(36, 50, 11))
    item_id = both.post("/items", files={"picture": picture}).json()["id"]
    assert second.missing() == []
    stored = second.vectors([item_id])[0]
    np.testing.assert_allclose(stored, other_model.embed(noise(36, 50, 11))[0], atol=1e-4)
    both.delete(f"/items/{item_id}")
    assert second.get([item_id]) == [None] or second.count() == 64
    assert second.count() == idx.count() == 64


@pytest.mark.parametrize("store", ["faiss", "milvus"])
def test_the_commands(
    store: str,
    class_folders: Path,
    tmp_path: Path,
    served_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import json

    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    out = str(tmp_path / "two.idx")
    words = ["index", str(served_run), str(class_folders), "--out", out, "--engine", "torch"]
    if store == "milvus":
        pytest.importorskip("milvus_lite")
        words += ["--store", str(tmp_path / "items.db")]
    assert main(words) == 0
    from lookalike.models import save_model

    backbone = create_backbone("resnet8-half", weights="none")
    save_model(Embedder(backbone, dim=5, pooling="average", input_spec=backbone.spec.resized(32)), tmp_path / "plain")
    capsys.readouterr()
    assert main(["index", out, "--with", str(tmp_path / "plain"), "--engine", "torch", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["model"], report["added"], report["count"], report["without_vector"]) == ("plain", 64, 64, [])
    picture = str(class_folders / "class3" / "2.png")
    hits = {}
    for name in ("striped", "plain"):
        assert main(["search", out, picture, "--model", name, "--engine", "torch", "--json", "-k", "5"]) == 0
        hits[name] = json.loads(capsys.readouterr().out)["hits"]
    with index.open(out) as idx, idx.open_model("plain") as second:
        for name, searched in (("striped", idx), ("plain", second)):
            expected = searched.search(searched.vectors([index.file_id(picture)]), 6)[0][1:]
            assert [hit["id"] for hit in hits[name]] == [hit.item.id for hit in expected]
    assert hits["striped"] != hits["plain"]
    assert main(["search", out, picture, "--model", "plane"]) == 2
    assert "did you mean 'plain'" in capsys.readouterr().err
    assert main(["index", out, "--with", str(tmp_path / "plain"), "--prune"]) == 2

    # A later update fills both.
    extra = tmp_path / "extra" / "wren"
    extra.mkdir(parents=True)
    noise(40, 40).save(extra / "1.png")
    assert main(["index", str(tmp_path / "extra"), "--out", out, "--engine", "torch", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["models"], report["without_vector"]) == (["striped", "plain"], [])
    with index.open(out) as idx, idx.open_model("plain") as second:
        assert second.count() == idx.count() == 65
