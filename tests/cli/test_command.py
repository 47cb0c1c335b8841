"""The command as people type it, mostly in this process."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from lookalike._util.checksums import write_checked
from lookalike.cli import COMMANDS, main
from lookalike.cli.evaluate import EvaluateSettings, _backbone_hint
from lookalike.data.names import from_text
from lookalike.training.checkpoint import RunFolder

QUICK = [
    *("--backbone", "resnet20", "--dim", "16", "--pooling-settings", "{num_prototypes: 8, memory: 64}"),
    *(
        "--steps",
        "4",
        "--batch-size",
        "8",
        "--per-class",
        "2",
        "--evaluate-every",
        "2",
        "--workers",
        "0",
        "--device",
        "cpu",
    ),
]


@pytest.fixture(scope="module")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mine"
    assert main(["train", str(class_folders), "--out", str(out), *QUICK]) == 0
    return out


def test_train_says_what_came_of_it(class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "my run"
    assert main(["train", str(class_folders), "--out", str(out), *QUICK]) == 0
    said = capsys.readouterr()
    assert "all steps are done after 4 steps" in said.out
    assert "everything included" in said.out
    assert said.out.count("MAP@R: like P@R") == 1
    assert f"look at it: {out / 'run.html'}" in said.out
    assert "before training" in said.out
    assert f"next: lookalike evaluate '{out}'" in said.out
    assert "holding out 16 of 2" in said.err
    assert main(["train", str(class_folders), "--out", str(out), *QUICK]) == 2
    assert "--resume continues it" in capsys.readouterr().err
    settings = (out / "settings.yaml").read_text()
    write_checked(out / "settings.yaml", settings.replace("view: null\n", ""))  # as in earlier versions
    assert main(["train", "--out", str(out), "--resume", "--steps", "6", "--json"]) == 0
    assert "view: null\n" in (out / "settings.yaml").read_text()
    assert json.loads(capsys.readouterr().out)["steps"] == 6


def test_evaluate(run: Path, class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), str(class_folders), "--json", "--workers", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pictures"] == report["queries"] == 64
    assert report["classes_seen_in_training"] == 6
    assert 0 < report["MAP@R"] <= report["P@1"] <= 1
    assert main(["evaluate", str(run), str(class_folders), "--workers", "0", "--ks", "[1, 3]"]) == 0
    text = capsys.readouterr().out
    assert "64 pictures of 8 classes" in text
    assert "R@3" in text
    assert "to compare" not in text, "its backbone came without weights"


def test_evaluate_says_what_a_training_has_to_beat(run: Path, tmp_path: Path) -> None:
    other = RunFolder(tmp_path)
    other.write_settings(replace(RunFolder(run).read_settings(), backbone="efficientnet_lite0", size=96))
    asked = EvaluateSettings(run=tmp_path, data="my pictures", split="test")
    typed = "lookalike evaluate efficientnet_lite0 'my pictures' --size 96 --split test"
    assert _backbone_hint(asked).strip() == f"to compare with the backbone alone: {typed}"
    assert (
        _backbone_hint(replace(asked, split="held-out")) == _backbone_hint(replace(asked, run=tmp_path / "none")) == ""
    )


def test_queries_are_compared_with_the_gallery(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        (str(class_folders / f"class{c}" / f"{i}.png"), f"class{c}", "query" if i < 2 else "gallery")
        for c in range(4)
        for i in range(6)
    ]
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "role"), *rows])
    assert main(["evaluate", str(run), str(tmp_path / "list.csv"), "--json", "--workers", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["queries"] == 8
    assert main(["evaluate", str(run), str(tmp_path / "list.csv"), "--workers", "0"]) == 0
    assert "8 queries against a gallery of 16" in capsys.readouterr().out


def test_broken_pictures_are_listed_or_refused(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        (tmp_path / f"c{number}").mkdir()
        for picture in range(3):
            whole = (class_folders / f"class{number}" / f"{picture}.png").read_bytes()
            (tmp_path / f"c{number}" / f"{picture}.png").write_bytes(whole)
    (tmp_path / "c0" / "empty.png").write_bytes(b"")
    (tmp_path / "c1" / "torn.png").write_bytes(whole[: len(whole) // 2])
    assert main(["evaluate", str(run), str(tmp_path), "--workers", "0"]) == 0
    said = capsys.readouterr().out
    assert "left out 2 unreadable pictures:" in said
    assert "empty.png" in said
    assert "torn.png" in said
    for command in (["evaluate", str(run), str(tmp_path)], ["embed", str(run), str(tmp_path), "--out", "v.npy"]):
        assert main([*command, "--strict"]) == 1  # what was asked is right, the data are not
        assert "2 pictures that cannot be used" in capsys.readouterr().err
    assert main(["train", str(tmp_path), "--out", str(tmp_path / "run"), "--strict"]) == 1


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_embed(run: Path, class_folders: Path, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / f"vectors{suffix}"
    assert main(["embed", str(run), str(class_folders), "--out", str(out), "--workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 64
    if suffix == ".npy":
        vectors = np.load(out)
        with out.with_suffix(".csv").open(newline="") as file:
            paths = [row["path"] for row in csv.DictReader(file)]
    else:
        import pyarrow.parquet as pq

        table = pq.read_table(out)
        vectors, paths = np.stack(table["vector"].to_numpy()), table["path"].to_pylist()
    assert vectors.shape == (64, 16)
    import lookalike

    np.testing.assert_allclose(vectors[9], lookalike.load(run).embed(class_folders / paths[9])[0], atol=1e-5)
    assert main(["embed", str(run), str(class_folders), "--out", str(out)]) == 2
    assert "exists: choose another --out" in capsys.readouterr().err


def test_embed_takes_pictures_without_classes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (40, 30), "red").save(tmp_path / "flat" / "a.jpg")
    assert main(["embed", str(run), str(tmp_path / "flat"), "--out", str(tmp_path / "v.npy"), "--workers", "0"]) == 0
    assert np.load(tmp_path / "v.npy").shape == (1, 16)
    assert (tmp_path / "v.csv").read_text().splitlines() == ["path,label", "a.jpg,"]


def test_embed_takes_a_table_of_one_class(run: Path, class_folders: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"path,label\n{class_folders}/class0/0.png,a\n{class_folders}/class0/1.png,a\n")
    words = ["embed", str(run), str(tmp_path / "list.csv"), "--out", str(tmp_path / "v.npy"), "--workers", "0"]
    assert main(words) == 0
    assert np.load(tmp_path / "v.npy").shape == (2, 16)


def test_embed_says_what_a_benchmark_lacks(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("images.txt", "image_class_labels.txt"):
        (tmp_path / name).write_text("1 1\n")
    assert main(["embed", str(run), str(tmp_path), "--out", str(tmp_path / "v.npy")]) == 1
    assert "is not complete: classes.txt, images missing" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_names_that_are_not_utf8(
    run: Path, class_folders: Path, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"caf\udce9/\udcff.png": r"caf\xE9/\xFF.png", "kuş/a\\b.png": r"kuş/a\\b.png", "kuş/c.png": "kuş/c.png"}
    for name in names:
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((class_folders / "class0" / "0.png").read_bytes())
    (tmp_path / "pictures" / "caf\udce9" / "torn\udce9.png").write_bytes(b"nothing")
    out = tmp_path / f"v{suffix}"
    assert main(["embed", str(run), str(tmp_path / "pictures"), "--out", str(out), "--workers", "0"]) == 0
    assert "left out: caf\\udce9/torn\\udce9.png: not a picture" in capsys.readouterr().out
    if suffix == ".npy":
        with out.with_suffix(".csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    else:
        import pyarrow.parquet as pq

        rows = pq.read_table(out, columns=["path", "label"]).to_pylist()
    assert {row["path"] for row in rows} == set(names.values())
    assert {row["label"] for row in rows} == {r"caf\xE9", "kuş"}
    assert {from_text(row["path"]) for row in rows} == set(names)


def test_embed_and_train_agree_on_the_classes(run: Path, class_folders: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "d" / split / "c0" / "deep").mkdir(parents=True)
        (tmp_path / "d" / split / "c1").mkdir(parents=True)
        for place in ("c0/deep", "c1"):
            whole = (class_folders / "class0" / "0.png").read_bytes()
            (tmp_path / "d" / split / place / "0.png").write_bytes(whole)
    assert main(["embed", str(run), str(tmp_path / "d"), "--out", str(tmp_path / "v.npy"), "--workers", "0"]) == 0
    rows = list(csv.DictReader((tmp_path / "v.csv").open(newline="")))
    assert {(row["label"], row["split"]) for row in rows} == {(c, s) for c in ("c0", "c1") for s in ("train", "test")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no command 'trian' (did you mean 'train'?)"),
        (["train", "x", "--poling", "gsp"], "there is no option --poling (did you mean '--pooling'?)"),
        (
            ["train", "x", "--crop", "aera"],
            "crop must be one of area, wide, pixels, none, got aera (did you mean 'area'?)",
        ),
        (["train", "x", "--steps", "many"], "steps"),
        (["train", "x"], "missing --out RUN (folder for the run)"),
        (["train", "--out", "RUN"], "a run needs data"),
        (["train", "--out", "RUN", "--resume"], "there is no run in RUN to resume"),
        (["train", "x", "--preset", "cubs"], "preset must be one of cub, cars, inshop, sop, paper, got cubs"),
        (["evaluate", "resnet20", "x"], "resnet20 has random weights"),
        (["train", "x", "y"], "unexpected argument 'y'"),
        (["train", "nowhere", "--out", "RUN"], "there is no folder, CSV or data set 'nowhere'"),
        (["evaluate", "nowhere", "x"], "nowhere holds no model"),
        (["evaluate", "nowhere"], "missing DATA (a folder of class folders"),
        (["embed", "a", "b", "--out", "c.txt"], "--out must end in .npy or .parquet"),
        (["datasets", "chek", "x"], "there is no 'datasets chek' (did you mean 'check'?)"),
        (["train", "x", "--config", "missing.yaml"], "missing.yaml"),
        (["train", "x", "--config"], "--config needs a value"),
        (["train", "x", "--steps", "1e3"], "steps must be a whole number, got 1000.0"),
        (["help", "trian"], "there is no command 'trian' (did you mean 'train'?)"),
        (["datasets", "check", "cub"], "name its folder: lookalike datasets check cub:FOLDER"),
        (["datasets", "check", "glyphs"], "there is nothing to check"),
    ],
)
def test_bad_usage_gets_one_clear_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--dim", "null", "--freeze-backbone", "--pooling", "average", "--pooling-settings", "{}"],
            "nothing would be trained",
        ),
        (["--pooling-settings", "{kep: 0.3}"], "gsp has no setting 'kep'"),
        (["--per-class", "1"], "compares pairs"),
        (
            ["--backbone", "vit_tiny_patch16_224", "--weights", "none", "--size", "60"],
            "does not take pictures of 60 pixels",
        ),
        (["--size", "2"], "even twice the size gives a single position"),
        (["--device", "nonsense"], "nonsense"),
        (["--out", "FILE/run"], "FILE is not a folder"),
    ],
)
def test_what_cannot_work_is_found_before_anything_is_written(
    words: list[str],
    message: str,
    class_folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("here")
    assert main(["train", str(class_folders), "--out", "RUN", *QUICK, *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_head_without_projection_trains_its_pooling(class_folders: Path, tmp_path: Path) -> None:
    words = ["--dim", "null", "--freeze-backbone", "--cache", str(tmp_path / "cache")]
    assert main(["train", str(class_folders), "--out", str(tmp_path / "run"), *QUICK, *words]) == 0


def test_tiny_data_just_work(class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        (tmp_path / "two" / f"c{number}").mkdir(parents=True)
        for picture in range(6):
            whole = (class_folders / f"class{number}" / f"{picture}.png").read_bytes()
            (tmp_path / "two" / f"c{number}" / f"{picture}.png").write_bytes(whole)
    words = ["--steps", "2", "--size", "32", "--workers", "0", "--device", "cpu", "--cache", str(tmp_path / "cache")]
    assert main(["train", str(tmp_path / "two"), "--out", str(tmp_path / "run"), *words]) == 0
    assert "measured on other pictures of the same classes" in capsys.readouterr().err


def test_the_line_goes_before_the_file_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("steps: 3\nseed: 5\n")
    assert main(["train", "x", "--steps", "2", "--config", "c.yaml", "--betas", "0.8,0.9", "--print-config"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["steps"], values["seed"], values["betas"]) == (2, 5, [0.8, 0.9])


def test_held_out_classes_alone(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(run), str(class_folders), "--split", "held-out", "--json", "--workers", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["classes"], report["classes_seen_in_training"]) == (2, 0)
    (tmp_path / "data.json").write_text('{"held_out": {"classes": ["a", "b"]}, "training": {"classes": ["a", "b"]}}')
    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    for kind, expected in (
        (["--split", "held-out"], "held out pictures of its training classes, not whole classes"),
        (["--split", "test"], "has no splits"),
    ):
        assert main(["evaluate", str(tmp_path), str(class_folders), *kind]) == 2
        assert expected in capsys.readouterr().err
    (tmp_path / "data.json").write_text('{"held_out": {"classes": ["a"]}, "training": {"classes": ["b"]}}')
    assert main(["evaluate", str(tmp_path), str(class_folders), "--split", "held-out"]) == 2
    assert "has none of the classes that the run" in capsys.readouterr().err
    (tmp_path / "data.json").unlink()
    assert main(["evaluate", str(tmp_path), str(class_folders), "--split", "held-out"]) == 2
    assert "--split held-out needs the folder of a run" in capsys.readouterr().err


def test_settings_from_a_file_and_from_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "pictures", "--steps", "7", "--no-flip", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "steps: 7  # maximum number of training steps" in printed
    Path("mine.yaml").write_text(printed)
    assert main(["train", "--config", "mine.yaml", "--lr", "0.5", "--print-config"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert (values["data"], values["steps"], values["flip"], values["lr"]) == ("pictures", 7, False, 0.5)
    Path("wrong.yaml").write_text("poling: gsp\n")
    assert main(["train", "pictures", "--config", "wrong.yaml"]) == 2
    assert "there is no setting 'poling' (did you mean 'pooling'?)" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"\n\nexample: lookalike {name}" in said
    assert "--json" in said
    assert "<class" not in said
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == said


def test_help_alone_is_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "lookalike train" in said
    assert main(["help"]) == 0
    assert capsys.readouterr().out == said


def test_datasets(class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets", "--json"]) == 0
    assert {"cub", "cars", "sop", "inshop"} <= {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert main(["datasets"]) == 0
    assert "CUB-200-2011" in capsys.readouterr().out
    assert main(["datasets", "check", str(class_folders), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]


@pytest.mark.parametrize(("role", "lacking"), [("query", "gallery"), ("gallery", "query")])
def test_roles_without_the_other_side(
    role: str, lacking: str, run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{class_folders}/class{c}/{i}.png,class{c},{role}" for c in range(4) for i in range(4)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,role", *rows]))
    fault = f"pictures have the role {role}, but none has {lacking} or both"
    assert main(["datasets", "check", str(tmp_path / "list.csv")]) == 1
    assert fault in capsys.readouterr().out
    assert main(["evaluate", str(run), str(tmp_path / "list.csv")]) == 1
    said = capsys.readouterr().err
    assert fault in said
    assert "embedding" not in said  # before any work


def test_queries_that_are_left_out_are_explained(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["class0/0.png", "class0/1.png", "class1/0.png", "class2/0.png"]
    rows = [f"{class_folders}/{name},{name.split('/')[0]}" for name in names]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    words = ["evaluate", str(run), str(tmp_path / "list.csv"), "--workers", "0"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "queries left out: 2 (no other picture of their class)" in said
    assert "left_out" not in said
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == 2
    roles = ["query", "gallery", "query", "gallery"]
    table = [f"{row},{role}" for row, role in zip(rows, roles, strict=True)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,role", *table]))
    assert main(words) == 0
    assert "queries left out: 1 (no other picture of their class in the gallery)" in capsys.readouterr().out
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows[1:]]))
    assert main(words) == 1
    assert "no query has another picture of its class, so nothing can be measured" in capsys.readouterr().err


def test_one_picture_of_each_class(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{class_folders}/class{c}/0.png,class{c}" for c in range(8)]
    Path("list.csv").write_text("\n".join(["path,label", *rows]))
    assert main(["train", "list.csv", "--out", "run", *QUICK]) == 2
    assert "multi-similarity learns from pairs of a class" in capsys.readouterr().err
    assert not Path("run").exists()
    words = ["--loss", "proxy-anchor", "--per-class", "1", "--steps", "1"]
    assert main(["train", "list.csv", "--out", "run", *QUICK, *words]) == 0
    assert "every training class has a single picture: proxy-anchor only learns" in capsys.readouterr().err


def test_hidden_folders_are_mentioned(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, number in (("a", 0), ("b", 1), (".c", 2)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for picture in range(2):
            whole = (class_folders / f"class{number}" / f"{picture}.png").read_bytes()
            (tmp_path / "pictures" / name / f"{picture}.png").write_bytes(whole)
    note = "hidden folders are skipped, 1 of them with pictures: .c"
    folder, out = str(tmp_path / "pictures"), str(tmp_path / "v.npy")
    for words in (
        ["evaluate", str(run), folder],
        ["embed", str(run), folder, "--out", out],
        ["datasets", "check", folder],
    ):
        assert main([*words, *(["--workers", "0"] if words[0] != "datasets" else [])]) == 0
        assert note in capsys.readouterr().out
    assert main(["train", folder, "--out", str(tmp_path / "run"), *QUICK, "--steps", "1"]) == 0
    assert note in capsys.readouterr().err


def test_who_reads_only_the_beginning_gets_no_complaint() -> None:
    words = [sys.executable, "-m", "lookalike", "datasets"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() == 141


def test_common_and_all_options_of_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert "--help-all" in short
    assert "--pooling " in short
    assert "--ccp-pull" not in short
    assert main(["train", "--help-all"]) == 0
    assert "--ccp-pull" in capsys.readouterr().out
