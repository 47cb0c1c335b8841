"""One cache of local features: train, evaluate and index share it; lookalike cache lists and clears it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lookalike.cli import main
from lookalike.inference import feature_cache
from lookalike.inference.feature_cache import FeatureCache
from lookalike.models import load_model, save_model

TRAIN = ["--backbone", "resnet8-half", "--size", "32", "--dim", "8", "--pooling", "average", "--freeze-backbone"]
TRAIN += ["--steps", "2", "--evaluate-every", "2", "--start", "pca", "--workers", "0", "--device", "cpu"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of pictures in every batch that is stored."""
    sizes: list[int] = []
    append = feature_cache.PartWriter.append

    def counting(self: Any, keys: Any, rows: Any) -> None:
        sizes.append(len(keys))
        append(self, keys, rows)

    monkeypatch.setattr(feature_cache.PartWriter, "append", counting)
    return sizes


def listed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["cache", *words, "--json"]) == code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_each_picture_is_computed_once(
    class_folders: Path, tmp_path: Path, cache: Path, computed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run, pictures = str(tmp_path / "run"), str(class_folders)
    assert main(["train", pictures, "--out", run, *TRAIN]) == 0
    assert sum(computed) == 64
    assert f"0 of 64 are in {cache}" in capsys.readouterr().err
    assert main(["evaluate", run, pictures, "--workers", "0"]) == 0
    assert main(["evaluate", run, pictures, "--split", "held-out", "--workers", "0"]) == 0
    assert main(["embed", run, pictures, "--out", str(tmp_path / "vectors.npy"), "--workers", "0"]) == 0
    assert f"features are cached in {cache}" in capsys.readouterr().err
    assert main(["index", run, pictures, "--out", str(tmp_path / "one.idx")]) == 0
    other = load_model(run, "cpu")  # another head on the same backbone
    assert other.head.projection is not None
    other.head.projection.weight.data.mul_(2)
    save_model(other, tmp_path / "other")
    assert main(["index", str(tmp_path / "other"), pictures, "--out", str(tmp_path / "two.idx")]) == 0
    assert sum(computed) == 64
    assert main(["index", run, pictures, "--out", str(tmp_path / "three.idx"), "--cache", str(tmp_path / "b")]) == 0
    assert sum(computed) == 128
    assert main(["index", run, pictures, "--out", str(tmp_path / "four.idx"), "--cache", "none"]) == 0
    assert sum(computed) == 128


def test_features_of_a_trained_backbone_are_not_stored(
    class_folders: Path, tmp_path: Path, computed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    words = [word for word in TRAIN if word != "--freeze-backbone"]
    assert main(["train", str(class_folders), "--out", run, *words, "--no-freeze-backbone"]) == 0
    assert main(["evaluate", run, str(class_folders), "--workers", "0"]) == 0
    assert computed == []
    assert listed(capsys)["entries"] in ([], [entry for entry in listed(capsys)["entries"] if entry["id"] == "engines"])


def test_list_and_clear(
    class_folders: Path, tmp_path: Path, cache: Path, computed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys) == {"folder": str(cache), "entries": [], "bytes": 0, "cleared": []}
    for stages in ("0", "1"):
        run = str(tmp_path / f"run{stages}")
        assert main(["train", str(class_folders), "--out", run, *TRAIN, "--train-stages", stages]) == 0
    (cache / "mine").mkdir()
    (cache / "mine" / "about.json").write_text("[]")
    report = listed(capsys)
    features = {entry["input_of"]: entry for entry in report["entries"] if entry["kind"] == "features"}
    assert set(features) == {None, "stage3"}
    for entry in features.values():
        assert (entry["backbone"], entry["size"], entry["count"]) == ("resnet8-half", 32, 64)
    assert report["bytes"] >= sum(entry["bytes"] for entry in features.values())
    assert main(["cache"]) == 0
    assert "64 pictures and views, resnet8-half at 32 px" in capsys.readouterr().out
    assert main(["cache", "clear", "nothing"]) == 2
    assert "'nothing' is not in the cache" in capsys.readouterr().err
    assert main(["cache", "claer"]) == 2
    assert "did you mean 'clear'" in capsys.readouterr().err
    chosen = features[None]["id"]
    report = listed(capsys, "clear", chosen[:10])
    assert [entry["id"] for entry in report["cleared"]] == [chosen]
    assert not (cache / chosen).exists()
    assert main(["evaluate", str(tmp_path / "run0"), str(class_folders), "--workers", "0"]) == 0  # nothing is lost
    assert sum(computed) == 3 * 64
    assert listed(capsys, "clear")["entries"] == []
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["mine"]


def test_verify(class_folders: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "verify"]) == 0
    assert "has no features" in capsys.readouterr().out
    assert main(["train", str(class_folders), "--out", str(tmp_path / "run"), *TRAIN]) == 0
    (entry,) = [entry for entry in listed(capsys)["entries"] if entry["kind"] == "features"]
    assert main(["cache", "verify"]) == 0
    assert capsys.readouterr().out == f"ok           {entry['id']}  64 rows\n"
    rng = random.Random(0)
    for name in ("part-000.rows", "part-000.sums", "part-000.keys", "about.json"):
        file = cache / entry["id"] / name
        good = file.read_bytes()
        content = bytearray(good)
        position = rng.randrange(len(good))
        content[position] ^= 0x80  # in a key: no digit any more
        for damaged in (bytes(content), good[: len(good) // 2]):
            if (name, damaged) == ("part-000.keys", good[: len(good) // 2]):
                continue  # as after a kill: the other rows are computed again
            file.write_bytes(damaged)
            report = listed(capsys, "verify", code=1)
            assert [part["status"] for part in report["parts"]] == ["damaged"], name
        file.write_bytes(good)
    assert listed(capsys, "verify", entry["id"][:6])["damaged"] == 0
    (cache / entry["id"] / "part-000.sums").unlink()
    assert listed(capsys, "verify")["parts"][0]["status"] == "no checksum"


def test_a_disk_without_space(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", str(class_folders), "--out", run, *TRAIN]) == 0
    assert main(["cache", "clear"]) == 0
    monkeypatch.setattr(feature_cache.FeatureStore, "lacks_space", lambda *_: "the features need 7 GB")
    capsys.readouterr()
    assert main(["index", run, str(class_folders), "--out", str(tmp_path / "idx")]) == 0
    assert "the features need 7 GB: nothing is cached (see --cache)" in capsys.readouterr().err
    assert not [entry for entry in listed(capsys)["entries"] if entry["kind"] == "features"]


def test_a_foreign_file_is_no_obstacle(class_folders: Path, tmp_path: Path, computed: list[int]) -> None:
    run, pictures = str(tmp_path / "run"), str(class_folders)
    assert main(["train", pictures, "--out", run, *TRAIN]) == 0
    store = FeatureCache(tmp_path / "cache", load_model(run, "cpu").backbone, load_model(run, "cpu").input_spec).store
    for name in ("part-000.rows", "part-000.keys", "about.json"):
        (store.folder / name).write_bytes(b"a letter to my mother\n" * 5000)
    assert main(["index", run, pictures, "--out", str(tmp_path / "idx")]) == 0
    assert sum(computed) == 128
    assert main(["evaluate", run, pictures, "--workers", "0"]) == 0
    assert sum(computed) == 128
