"""The report of a folder with figures that we chose."""

import base64
import csv
import io
import json
import re
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from fake_benchmark import write_failure, write_result

from lookalike.experiments.choices import Choice
from lookalike.experiments.protocol import load_protocol, settings_for
from lookalike.experiments.results import RESULTS_VERSION
from lookalike.experiments.sections import frozen_features
from lookalike.report import theme
from lookalike.report.benchmark import build_report
from lookalike.report.benchmark_json import as_dict
from lookalike.report.benchmark_notes import notes
from lookalike.report.benchmark_page import as_html, as_latex, as_text
from lookalike.report.benchmark_plot import collect_bars, plot_changes
from lookalike.report.benchmark_tables import costs_table, metrics_table, spreadsheet_table
from lookalike.report.published_numbers import (
    NONE,
    describe_published,
    differences_from_protocol,
    explain_published,
    find_published,
)
from lookalike.training.settings import Settings

GAIN = {"average": (0.0, 0.0, 0.0), "gsp": (0.02, 0.04, 0.06), "max": (-0.02, -0.02, -0.02)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two losses, three poolings, one fold, three repeats; all of c2 + max's second and third failed."""
    for loss, (pooling, gains), repeat in product(("c2", "ms"), GAIN.items(), range(3)):
        if (loss, pooling) == ("c2", "max") and repeat:
            write_failure(tmp_path, "not finite <after> 7 steps", 0, repeat, loss=loss, pooling=pooling)
        else:
            value = 0.2 + 0.01 * repeat + gains[repeat]
            write_result(tmp_path, value, 0, repeat, loss=loss, pooling=pooling)
    return tmp_path


def test_figures(folder: Path) -> None:
    [section] = build_report(folder).sections
    table = metrics_table(section, ("MAP@R", "P@1"))
    by_title = {line.entries[0].text: line for line in table.lines}
    titles = [column.title for column in table.columns]
    assert titles[:3] == ["method", "MAP@R 128-D, %", "P@1 128-D, %"]
    assert by_title["c2 + average"].entries[1].text == "21.00 ± 1.00"
    assert by_title["c2 + gsp"].entries[1].text == "25.00 ± 3.00"
    against = titles.index("MAP@R against baseline, points")
    assert [by_title[name].entries[against].text for name in ("c2 + average", "c2 + gsp", "ms + max")] == [
        "baseline",
        "+4.00 ± 2.00",
        "-2.00 ± 0.00",
    ]
    # differences 2, 4, 6: t = 2 sqrt 3, p = 1 - t / sqrt(2 + t^2)
    p = by_title["c2 + gsp"].entries[against + 1]
    assert p.value == pytest.approx(1 - np.sqrt(12) / np.sqrt(14))
    assert p.text == "0.074"
    assert by_title["c2 + gsp"].entries[titles.index("best step")].text == "200 ± 100"
    ranks = dict(zip(by_title, (row[1] for row in table.ranks()), strict=True))
    assert ranks == {
        "c2 + average": 2,
        "c2 + gsp": 1,
        "c2 + max †": 0,
        "ms + average": 2,
        "ms + gsp": 1,
        "ms + max": 0,
    }


def test_incomplete_rows_are_never_best(tmp_path: Path) -> None:
    for pooling, value, repeats in (("average", 0.2, 2), ("gsp", 0.3, 2), ("max", 0.9, 1)):
        for repeat in range(repeats):
            write_result(tmp_path, value, 0, repeat, pooling=pooling)
    [section] = build_report(tmp_path).sections
    assert [ranks[1] for ranks in metrics_table(section, ("MAP@R", "P@1")).ranks()] == [2, 1, 0]


def test_notes_say_what_a_reader_must_know(folder: Path) -> None:
    [section] = build_report(folder).sections
    notes = "\n".join(metrics_table(section, ("MAP@R", "P@1")).notes)
    assert "† c2 + max: 2 models are missing (2 failed): fold 1 repeat 2, fold 1 repeat 3." in notes
    assert "No p for c2 + max: one pair is too few for a test." in notes
    assert "No p for ms + max: all pairs have the same difference." in notes
    assert "Baseline: c2 + average, ms + average." in notes
    assert NONE not in notes, "nobody has published numbers for a protocol of one's own"


@pytest.mark.parametrize("but", ["", "gsp"])
def test_settings_that_differ_within_rows_are_said_once(tmp_path: Path, but: str) -> None:
    for pooling, repeat in product(("average", "gsp", "max"), range(2)):
        rate = 1e-3 if pooling == but else 1e-3 * (1 + repeat)
        write_result(tmp_path, 0.2, 0, repeat, pooling=pooling, settings={"lr": rate})
    [section] = build_report(tmp_path).sections
    where = "c2 + average, c2 + max" if but else "in every row"
    assert f"The models of a row differ in lr: {where}." in metrics_table(section, ("MAP@R", "P@1")).notes


def test_changes_in_points(folder: Path) -> None:
    [section] = build_report(folder).sections
    bars = collect_bars(section)
    assert list(bars) == ["c2", "ms"]
    assert bars["c2"]["gsp"] == pytest.approx((4.0, 2.0, True))
    assert bars["c2"]["max"] == pytest.approx((-2.0, 0.0, False))  # of the one pair, whose baseline is 0.2
    plot = plot_changes(section, "MAP@R")
    assert plot is not None
    [axes] = plot.axes
    names = {tick: label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    drawn = [(names[bar.get_y() + bar.get_height() / 2], bar.get_width()) for bar in axes.patches]
    assert drawn == [(label, pytest.approx(bar.change)) for of in bars.values() for label, bar in of.items()]
    assert list(names.values()) == ["c2", *bars["c2"], "ms", *bars["ms"]]
    assert theme.as_bytes(plot, "svg").startswith(b"<?xml")


def test_the_chart_fits_any_width_and_is_dark_in_the_dark(folder: Path) -> None:
    report = build_report(folder)
    found = re.search(r'<img style="([^"]+)" src="data:image/svg\+xml;base64,([^"]+)"', as_html(report))
    assert found is not None
    assert "max-width: 100%" in found[1]
    assert "width: auto" in found[1]  # a page would else make it wider than a telephone
    image = ElementTree.fromstring(base64.b64decode(found[2]))
    name = "{http://www.w3.org/2000/svg}"
    dark = next(each.text or "" for each in image.iter(f"{name}style") if "dark" in (each.text or ""))
    [turned] = re.findall(r"#(\w+) \{ filter: invert", dark)
    assert [each.get("id") for each in image if each.tag == f"{name}g"] == [turned], "all of it"
    plot = plot_changes(report.sections[0], "MAP@R")
    assert plot is not None
    assert plot.axes[0].get_xlabel() == "change of MAP@R against the baseline, points"


UNTRAINED = "no run was ever better than its start: the figures are those of the untrained start."


def test_rows_that_training_never_changed_are_named(tmp_path: Path) -> None:
    best = {"average": (0, 10), "gsp": (0, 0), "max": (None, None), "gem": (0, 0)}
    for pooling, steps in best.items():
        for repeat, step in enumerate(steps):
            write_result(tmp_path, 0.2, 0, repeat, pooling=pooling, more={"best_step": step})
    report = build_report(tmp_path)
    for told in (as_text(report), as_html(report)):
        assert f"c2 + gem, c2 + gsp: {UNTRAINED}" in told
        assert told.count("untrained") == 1
    assert f"\n% c2 + gem, c2 + gsp: {UNTRAINED}\n" in as_latex(report)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"c2": (32, 32), "proxy-nca++": (9, 9)}, "32 pictures for c2; 9 pictures for proxy-nca++."),
        (
            {"c2": (32, 9), "ms": (32, 32)},
            "32 pictures for c2 + average, ms + average, ms + gsp; 9 pictures for c2 + gsp.",
        ),
        ({"c2": (9, 9), "ms": (9, 9)}, None),
    ],
)
def test_several_batch_sizes_are_noted(tmp_path: Path, sizes: dict[str, tuple[int, int]], told: str | None) -> None:
    for loss, of in sizes.items():
        for pooling, size in zip(("average", "gsp"), of, strict=True):
            write_result(tmp_path, 0.2, loss=loss, pooling=pooling, settings={"batch_size": size})
    text = as_text(build_report(tmp_path))
    assert ("Batches are not of one size" in text) is (told is not None)
    assert told is None or told in text


def test_commands_are_listed_as_they_were_typed(folder: Path) -> None:
    first = "lookalike benchmark --data glyphs --set 'steps=3,\nsize=32' --out x"
    second = "lookalike benchmark --data glyphs --losses ms --out x"
    with (folder / "commands.txt").open("w") as file:
        for day, line in enumerate((first, second) * 2, start=1):
            file.write(f"2026-01-0{day} 10:00:00 UTC, code 12ab: {line}\n")
    page = unescape(as_html(build_report(folder)))
    assert f"# 2026-01-01 10:00:00 UTC, code 12ab, 2 times\n{first}\n\n# 2026-01-02" in page
    assert page.count(first) == page.count(second) == 1
    assert "The folder has no commands.txt" not in page
    (folder / "commands.txt").unlink()
    page = unescape(as_html(build_report(folder)))
    assert "The folder has no commands.txt. Apart from --set, this command gives the same rows" in page


def test_another_baseline_and_another_metric(folder: Path) -> None:
    [section] = build_report(folder, "R@2", "ms + gsp").sections
    assert {row.baseline.title for row in section.rows} == {"ms + gsp"}
    assert list(section.rows[0].published) == ["R@2", "MAP@R", "P@1"]
    with pytest.raises(ValueError, match=r"no row is called 'ms \+ gps' \(did you mean 'ms \+ gsp'\?\)"):
        build_report(folder, baseline="ms + gps")
    with pytest.raises(ValueError, match="metric must be one of P@1, P@R, MAP@R, R@1, R@2, got 'queries'"):
        build_report(folder, "queries")


def test_costs(folder: Path) -> None:
    [section] = build_report(folder).sections
    line = costs_table(section).lines[1]
    assert [entry.text for entry in line.entries] == ["c2 + gsp", "8,192", "164,000", "40.0", "–", "0.5", "3"]  # noqa: RUF001
    assert [column.title for column in costs_table(section).columns][3:6] == [
        "CPU ms per step",
        "memory at most, MB",
        "CPU minutes per model",
    ]
    assert not any(map(any, costs_table(section).ranks())), "no stars on costs"
    write_result(folder, 0.3, 0, 3, more={"device": "cuda"})
    [section] = build_report(folder).sections
    assert "times do not compare" in costs_table(section).notes[0]


def test_results_of_earlier_versions_have_no_cpu_time(tmp_path: Path) -> None:
    folder = write_result(tmp_path, 0.2)
    content = json.loads((folder / "result.json").read_text())
    for name in ("cpu_seconds", "cpu_seconds_per_step", "asked_batch_size", "frozen"):
        content.pop(name, None)
    (folder / "result.json").write_text(json.dumps(content))
    [section] = build_report(tmp_path).sections
    [line] = costs_table(section).lines
    assert [line.entries[3].text, line.entries[5].text] == ["–", "–"]  # noqa: RUF001
    assert frozen_features(section) == {}


def test_frozen_features_have_a_row(tmp_path: Path) -> None:
    frozen = {"metrics": {"MAP@R": 0.1, "P@1": 0.5}, "dim": 1280, "size": 224}
    for pooling, value in (("average", 0.2), ("gsp", 0.3)):
        write_result(tmp_path, value, pooling=pooling, more={"frozen": frozen})
    report = build_report(tmp_path)
    [section] = report.sections
    first, *others = metrics_table(section, ("MAP@R", "P@1")).lines
    assert [entry.text for entry in first.entries[:3]] == ["frozen features, 1280-D", "10.00", "50.00"]
    assert len(others) == 2
    assert metrics_table(section, ("MAP@R", "P@1")).ranks()[0] == [0] * len(first.entries), "it does not compete"
    assert spreadsheet_table(report).csv().splitlines()[1].split(",")[3] == '"frozen features'
    assert as_dict(report)["sections"][0]["frozen"] == {"frozen features, 1280-D": frozen}


def test_a_batch_that_shrank_is_a_warning(tmp_path: Path) -> None:
    for pooling in ("average", "gsp"):
        write_result(tmp_path, 0.2, pooling=pooling, settings={"batch_size": 5}, more={"asked_batch_size": 32})
    report = build_report(tmp_path)
    told = "Warning: batches have 5 pictures instead of 32, as there are too few training classes: every row."
    assert as_text(report).startswith(told)
    assert f'<p role="note"><strong>{told}</strong></p>' in as_html(report)


def test_a_report_of_ones_own_has_nothing_of_the_papers(folder: Path) -> None:
    report = build_report(folder)
    for text in (as_html(report), as_text(report), as_latex(report)):
        assert "thesis" not in text.lower()
        assert "published" not in text.lower()
    assert as_text(report).count("MAP@R: like P@R") == as_html(report).count("MAP@R: like P@R") == 1


def test_page_and_text(folder: Path) -> None:
    (folder / "cells" / "zzz").mkdir()
    (folder / "cells" / "zzz" / "result.json").write_text("[")
    report = build_report(folder)
    html, text = as_html(report), as_text(report)
    assert "c2 + max, fold 1, repeat 2: not finite &lt;after&gt; 7 steps" in html
    assert "c2 + max, fold 1, repeat 2: not finite <after> 7 steps" in text
    assert "data:image/svg+xml;base64," in html
    assert "--protocol ours --seeds 3" in html
    assert "<dt>backbone</dt><dd>resnet20</dd>" in html
    assert "zzz: " in html
    assert "zzz: " in text
    assert as_latex(report).count("\\begin{tabular}") == 2


def test_everything_for_a_spreadsheet(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(spreadsheet_table(build_report(folder)).csv())))
    assert len(rows) == 6
    gsp = next(row for row in rows if row["method"] == "c2 + gsp")
    assert (gsp["models"], gsp["missing"], gsp["pairs"], gsp["baseline"]) == ("3", "0", "3", "c2 + average")
    assert float(gsp["MAP@R"]) == pytest.approx(25)
    assert float(gsp["MAP@R std"]) == pytest.approx(3)
    assert float(gsp["difference"]) == pytest.approx(4)
    assert gsp["MAP@R joined"] == gsp["MAP@R published"] == ""


def test_versions_have_sections_of_their_own(folder: Path) -> None:
    write_result(folder, 0.9, version="newer")
    report = build_report(folder)
    assert [section.title for section in report.sections] == [
        "glyphs, protocol ours, version newer",
        f"glyphs, protocol ours, version {RESULTS_VERSION}",
    ]
    assert report.sections[0].rows[0].summary("MAP@R").mean == 0.9
    assert report.sections[1].rows[0].summary("MAP@R").mean == pytest.approx(0.21)
    assert 'href="#part-1"' in as_html(report)


def test_published_numbers_stand_find_published(tmp_path: Path) -> None:
    about = {"protocol": "fair", "data": "cub:/somewhere"}
    for pooling, methods in (("average", ()), ("gsp", ()), ("gsp", ("zero-shot",)), ("gsp", ("centres",))):
        for fold in range(4):
            write_result(tmp_path, 0.2 + fold / 100, fold, pooling=pooling, methods=methods, **about)
    [section] = build_report(tmp_path).sections
    rows = {row.title: row for row in section.rows}
    known = {title: describe_published(find_published(row, "MAP@R", 128)) for title, row in rows.items()}
    assert known == {
        "c2 + average": "20.58 ± 0.13 (Table 5.1)",
        "c2 + gsp": "20.85 (Table 5.3)",
        "c2 + gsp + zero-shot": "21.53 ± 0.24 (Table 5.1); 21.52 (Table 5.3)",
        "c2 + gsp + centres": NONE,
    }
    assert describe_published(find_published(rows["c2 + gsp"], "P@1", 128)) == NONE
    both = rows["c2 + gsp + zero-shot"]
    assert describe_published(find_published(both, "P@1", 512)) == "68.85 ± 0.41 (Table 5.1)"
    assert find_published(both, "P@R", 128) == ()
    assert "C2+GSP in Table 5.1, with bn_inception (ours: resnet20)" in explain_published(
        find_published(both, "MAP@R", 128), both
    )
    columns = [column.title for column in metrics_table(section, ("MAP@R", "P@1")).columns]
    assert columns[-2:] == ["published MAP@R 128-D", "published P@1 128-D"]


def test_published_numbers_stand_beside_their_like_only(tmp_path: Path) -> None:
    about = {"protocol": "fair-ccp", "data": "cub:/somewhere", "methods": ("memory",)}
    for name, memory in (("L", 25), ("S", 3), ("none", 7)):
        write_result(
            tmp_path / name,
            0.2,
            queries=5924,
            settings={"backbone": "bn_inception", "memory": memory, "steps": 1_000_000},
            **about,
        )

    def told(folder: str) -> str:
        [section] = build_report(tmp_path / folder).sections
        return describe_published(find_published(section.rows[0], "MAP@R", 128))

    assert told("L") == "21.41 (Table 3.1)"
    assert told("S") == told("none") == NONE  # the table has C2+XBM+L only
    [section] = build_report(tmp_path / "L").sections
    row = section.rows[0]
    assert differences_from_protocol(row) == []
    write_result(tmp_path / "small", 0.2, settings={"backbone": "resnet20", "size": 64, "memory": 25}, **about)
    [section] = build_report(tmp_path / "small").sections
    _, difference, *deviations = notes(section)  # after what is missing
    assert difference == (
        "‡ Not as the published numbers were made: backbone resnet20 (theirs: bn_inception), size 64 (theirs: 227), "
        "steps 300 (theirs: until patience ends it), random weights (theirs: ImageNet), "
        "60 test pictures (theirs: 5,924): c2 + average + memory."
    )
    text = "\n".join(deviations)
    assert "Not as printed, crop: an area share of .16 to 1" in text
    assert "Not as printed, memory: compared with once it is full" in text
    assert not re.search("Not as printed, (gsp|cbam|ccp|zero-shot)", text)  # no row has them
    changed = replace(row, cell=replace(row.cell, pooling=Choice("average", {"some": 0.9})))
    assert find_published(changed, "MAP@R", 128) == ()


def test_every_difference_from_the_published_numbers_is_named(tmp_path: Path) -> None:
    protocol = load_protocol("fair")
    about = {"data_set": "cub", "loss": "c2", "pooling": "gsp", "methods": ["zero-shot"]}
    settings = json.loads(json.dumps(vars(Settings()) | settings_for(protocol, **about), default=str))
    cell = {"protocol": "fair", "data": "cub:/x", "pooling": "gsp", "methods": ("zero-shot",), "queries": 5924}

    def differences(name: str, **changes: Any) -> list[str]:
        for repeat in range(3):
            write_result(tmp_path / name, 0.2, repeat=repeat, settings=settings | changes, **cell)
        [section] = build_report(tmp_path / name).sections
        [row] = section.rows
        entry = metrics_table(section, ("MAP@R", "P@1")).lines[0].entries[-1].text
        found = differences_from_protocol(row)
        assert ("‡" in entry) == bool(found)
        assert as_dict(build_report(tmp_path / name))["sections"][0]["rows"][0]["not_as_published"] == found
        return found

    assert differences("same") == []
    assert differences("lr", lr=1e-4) == ["lr 0.0001 (theirs: 1e-05)"]
    assert differences("patience", patience=None) == ["patience none (theirs: 15)"]
    assert differences("lambda", zero_shot=0.3) == ["zero_shot 0.3 (theirs: 0.1)"]
    assert differences("clip", normalise="clip") == ["normalise clip (theirs: l2)"]
    assert differences("ema", ema=0.9) == ["ema 0.9 (theirs: 0.0)"]  # the protocol does not name it
    assert differences("random", weights="none") == ["random weights (theirs: ImageNet)"]
    file = {"weights": "/somewhere/weights.pth"}
    assert differences("unknown", **file) == ["weights from weights.pth, an unknown file (theirs: ImageNet)"]
    cell["more"] = {"known_weights": {"file": "bn_inception-52deb4733.pth", "trained_on": "ImageNet"}}
    assert differences("known", **file) == []
    cell["more"] = {"known_weights": {"file": "resnet20-12fca82f.th", "trained_on": "CIFAR-10"}}
    assert differences("other", **file) == ["weights of CIFAR-10 (theirs: ImageNet)"]
    del cell["more"]
    kept = settings["pooling_settings"] | {"keep": 0.5}
    assert differences("keep", pooling_settings=kept) == ["pooling_settings.keep 0.5 (theirs: 0.3)"]
    margin = differences("margin", loss_settings={"negative_margin": 0.7})
    assert margin == ["loss_settings.negative_margin 0.7 (theirs: the default)"]
    cell["queries"] = 100
    assert differences("few") == ["100 test pictures (theirs: 5,924)"]


@pytest.mark.parametrize(("backbone", "size"), [("bn_inception", 512), ("resnet50", 512), ("resnet50", 128)])
def test_every_published_backbone_and_size_is_compared_with_its_own_settings(
    backbone: str, size: int, tmp_path: Path
) -> None:
    about = {"data_set": "cub", "loss": "c1", "pooling": "max+gsp", "methods": ["zero-shot"]}
    chosen = settings_for(load_protocol("conventional"), **about, backbone=backbone, size=size)
    settings = json.loads(json.dumps(vars(Settings()) | chosen, default=str))
    cell = {"loss": "c1", "pooling": "max+gsp", "methods": ("zero-shot",), "queries": 5924}
    for repeat in range(3):
        write_result(tmp_path, 0.2, repeat=repeat, settings=settings, protocol="conventional", data="cub:/x", **cell)
    [section] = build_report(tmp_path).sections
    assert differences_from_protocol(section.rows[0]) == []


def test_joined_models_have_columns(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 4)
    for fold in range(2):
        vectors = chance.normal(size=(20, 3)).astype(np.float32)
        write_result(tmp_path, 0.2, fold, vectors=vectors, labels=labels)
        write_result(tmp_path, 0.2, fold, pooling="gsp")
    [section] = build_report(tmp_path).sections
    table = metrics_table(section, ("MAP@R", "P@1"))
    titles = [column.title for column in table.columns]
    place = titles.index("MAP@R 6-D, %")
    first, second = (line.entries[place] for line in table.lines)
    assert first.value is not None
    assert (second.text, second.hint) == ("–", "the vectors of fold 1, repeat 1 were not kept")  # noqa: RUF001
    [without] = build_report(tmp_path, join=False).sections
    assert "MAP@R 6-D, %" not in [column.title for column in metrics_table(without, ("MAP@R", "P@1")).columns]


def test_a_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no results: give the --out folder of lookalike benchmark"):
        build_report(tmp_path)
    folder = write_failure(tmp_path, "no")
    (folder / "failed.json").unlink()
    with pytest.raises(ValueError, match="no results yet: 1 model is unfinished"):
        build_report(tmp_path)
