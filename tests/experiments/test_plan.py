"""What was asked for becomes cells, each with the settings of its protocol."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lookalike._util.hashing import digest
from lookalike.data.glyphs import glyphs
from lookalike.data.pictures import Pictures
from lookalike.experiments.choices import Choice, parse_choices, parse_settings, split_top_level
from lookalike.experiments.plan import make_plan, parse_methods, with_seeds
from lookalike.experiments.protocol import load_protocol
from lookalike.experiments.results import NOT_IN_KEY, RESULTS_VERSION
from lookalike.experiments.splits import fingerprint_of, steered_by_test, with_fold, with_test_classes

POOLINGS = ["average", "gsp", "max"]


@pytest.fixture(scope="module")
def letters() -> Pictures:
    return glyphs(cells=1, size=32, per_class=3, train_classes=8, test_classes=4)


def plan_of(letters: Pictures, losses: str, poolings: str, methods: str = "none", **more: Any) -> Any:
    chosen = parse_choices(losses, ["c1", "c2", "proxy-anchor"], "loss"), parse_choices(poolings, POOLINGS, "pooling")
    protocol = with_seeds(load_protocol(more.pop("protocol", "quick")), more.pop("seeds", None))
    return make_plan(protocol, {"letters": with_test_classes(letters)}, *chosen, parse_methods(methods), **more)


def test_names_settings_and_wildcards_are_understood() -> None:
    assert parse_choices("*", POOLINGS, "pooling") == [Choice("average"), Choice("gsp"), Choice("max")]
    assert parse_choices("gsp(keep=0.2, init=random),m*,gsp(keep=0.2,init=random)", POOLINGS, "pooling") == [
        Choice("gsp", {"keep": 0.2, "init": "random"}),
        Choice("max"),
    ]
    assert split_top_level("a(b,c),[d, e] , f", ",") == ["a(b,c)", "[d, e]", "f"]
    read = parse_settings(["lr=1e-4", "knob=-inf", "flip=false", "size=null", "betas=[0.9, 0.99]"])
    assert read == {"lr": 1e-4, "knob": float("-inf"), "flip": False, "size": None, "betas": [0.9, 0.99]}
    assert [
        tuple(map(str, case)) for case in parse_methods("none, xbm+zero-shot, zero-shot+memory,ccp(proxies=4)")
    ] == [
        (),
        ("zero-shot", "memory"),
        ("ccp(proxies=4)",),
    ]


def test_rows_that_are_the_same_are_one(letters: Pictures) -> None:
    """gsp has keep 0.3 in this protocol."""
    plan = plan_of(letters, "c2", "gsp,gsp(keep=0.3),gsp(keep=0.2)", seeds=2)
    assert [cell.title for cell in plan.cells] == ["c2 + gsp"] * 2 + ["c2 + gsp(keep=0.2)"] * 2
    assert plan.impossible == [("c2 + gsp(keep=0.3) on letters", "its settings equal those of c2 + gsp")]
    with pytest.raises(ValueError, match="every repeat has its own, and --seeds says how many"):
        plan_of(letters, "c2", "average", overrides={"seed": 7})
    other = plan_of(letters, "c2", "gsp", seeds=2, overrides={"precision": "bf16-mixed"})
    assert {cell.key for cell in other.cells}.isdisjoint(cell.key for cell in plan.cells)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gps", "there is no pooling 'gps' .did you mean 'gsp'"),
        ("z*", "no pooling is called like 'z[*]'; there are: average, gsp, max"),
        ("gsp(keep=0.2", "is not closed"),
        ("gsp(keep)", "must be given as name=value, got 'keep'"),
        (" , ", "name at least one pooling"),
    ],
)
def test_bad_names_get_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_choices(text, POOLINGS, "pooling")


def test_every_combination_with_every_fold_and_repeat_is_a_cell(letters: Pictures) -> None:
    plan = plan_of(letters, "c1,c2", "average,gsp", "none,zero-shot", protocol="fair", seeds=2)
    assert len(plan.cells) == 2 * 2 * 2 * (4 * 2)
    assert len({cell.key for cell in plan.cells}) == len(plan.cells)
    assert {(cell.fold, cell.repeat) for cell in plan.cells} == {(f, r) for f in range(4) for r in range(2)}
    held_out = [set(plan.parts["letters", fold].split("validation").classes) for fold in range(4)]
    assert set.union(*held_out) == set(letters.split("train").classes)
    assert sum(map(len, held_out)) == 8
    one = next(cell for cell in plan.cells if cell.title == "c2 + gsp + zero-shot")
    assert (one.settings.zero_shot, one.settings.preset, one.settings.pooling_settings["keep"]) == (0.1, "cub", 0.3)


def test_settings_reach_where_they_belong(letters: Pictures) -> None:
    methods = "zero-shot(weight=0.3,ridge=0.1)+ccp(proxies=2)+centres(weight=0.5,knob=-1)"
    plan = plan_of(letters, "c2(negative_margin=0.7)", "gsp(keep=0.5)", methods, overrides={"steps": 7})
    settings = plan.cells[0].settings
    assert settings.loss_settings == {"negative_margin": 0.7}
    assert settings.pooling_settings["keep"] == 0.5
    assert (settings.zero_shot, settings.zero_shot_settings["ridge"], settings.ccp_proxies) == (0.3, 0.1, 2)
    assert (settings.centres, settings.centres_settings, settings.steps) == (0.5, {"knob": -1}, 7)


def test_sizes_of_poolings_with_a_vector_for_each_prototype(letters: Pictures) -> None:
    """8 x 16 and 64 x 128; a size that cannot be is refused before any work."""
    both = "otp, otp(num_prototypes=64, dim=8192), netvlad(num_prototypes=64, dim=8192), gsp"
    choices = parse_choices("c2", ["c2"], "loss"), parse_choices(both, ["gsp", "netvlad", "otp"], "pooling")
    sources = {"letters": with_test_classes(letters)}
    plan = make_plan(load_protocol("poolings"), sources, *choices)
    assert plan.impossible == []
    assert {cell.title: cell.settings.dim for cell in plan.cells} == {
        "c2 + otp": 128,
        "c2 + otp(dim=8192, num_prototypes=64)": 8192,
        "c2 + netvlad(dim=8192, num_prototypes=64)": 8192,
        "c2 + gsp": 128,
    }
    large = plan.cells[12].settings
    assert (large.pooling_settings["num_prototypes"], large.pooling_settings["init"]) == (64, "k-centre-released")
    refused = make_plan(load_protocol("poolings"), sources, *choices, overrides={"dim": 100})
    assert {cell.title for cell in refused.cells} == {"c2 + gsp"}
    assert dict(refused.impossible)["c2 + otp on letters"].startswith("num_prototypes must divide the size")
    wrong = parse_choices("gsp(kep=1), gsp(keep=2)", ["gsp"], "pooling")
    reasons = dict(make_plan(load_protocol("fair"), sources, choices[0], wrong).impossible)
    assert "gsp has no setting 'kep' (did you mean 'keep'?)" in reasons["c2 + gsp(kep=1) on letters"]
    assert "keep must be in (0, 1]" in reasons["c2 + gsp(keep=2) on letters"]


def test_messages_at_test_are_rows(letters: Pictures) -> None:
    losses = parse_choices("libc, libc(message_passing=7), c2, c2(message_passing=7)", ["c2", "libc"], "loss")
    poolings = parse_choices("max, weighted-max+gsp", ["max", "weighted-max+gsp"], "pooling")
    methods = parse_methods("none, libc(message_passing=7)")
    plan = make_plan(load_protocol("libc"), {"letters": with_test_classes(letters)}, losses, poolings, methods)
    passing = {cell.title: cell.settings.message_passing for cell in plan.cells}
    assert (passing["libc + max"], passing["libc(message_passing=7) + weighted-max+gsp"]) == (0, 7)
    assert (passing["c2 + max"], passing["c2 + max + libc(message_passing=7)"]) == (0, 7)
    reasons = dict(plan.impossible)
    assert "--message-passing needs LIBC" in reasons["c2(message_passing=7) + max on letters"]


def test_what_cannot_be_is_left_out_with_its_reason_and_the_rest_stays(letters: Pictures) -> None:
    plan = plan_of(letters, "c1,proxy-anchor", "average,max", "none,xbm,zero-shot,centres")
    reasons = dict(plan.impossible)
    assert "loss on pairs" in reasons["proxy-anchor + average + memory on letters"]
    assert "prototypes" in reasons["c1 + max + zero-shot on letters"]
    assert "centres(weight=0.1)" in reasons["c1 + average + centres on letters"]
    titles = {cell.title for cell in plan.cells}
    assert {"c1 + average", "c1 + average + memory", "c1 + average + zero-shot", "proxy-anchor + max"} <= titles
    with pytest.raises(ValueError, match=r"there is no setting 'stesp' .did you mean 'steps'"):
        plan_of(letters, "c1", "average", overrides={"stesp": 1})


def test_a_key_covers_version_settings_and_data_but_not_the_machine(
    letters: Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = plan_of(letters, "c1", "average").cells[0]
    assert replace(cell, settings=replace(cell.settings, workers=3, save_every=5)).key == cell.key
    assert replace(cell, settings=replace(cell.settings, steps=5)).key != cell.key
    assert replace(cell, settings=replace(cell.settings, seed=5)).key != cell.key
    assert replace(cell, fingerprint="other").key != cell.key
    monkeypatch.setattr("lookalike.experiments.cells.RESULTS_VERSION", 99)
    assert replace(cell).key != cell.key


def test_a_key_depends_on_no_source_file(letters: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = plan_of(letters, "c1", "average").cells[0]
    settings = {name: value for name, value in vars(cell.settings).items() if name not in NOT_IN_KEY}
    text = json.dumps(settings, sort_keys=True, default=str)

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a file was read to compute the key")

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", refuse)  # of pathlib
        patch.setattr("builtins.open", refuse)
        key = replace(cell).key
    assert key == digest(text, str(RESULTS_VERSION), cell.fingerprint)[:16]


def test_data_without_a_split_are_tested_on_the_last_half_of_their_classes(letters: Pictures) -> None:
    plain = replace(letters, splits=None)
    divided = with_test_classes(plain)
    assert divided.split("train").classes == letters.classes[:6]
    assert divided.split("test").classes == letters.classes[6:]
    with pytest.raises(ValueError, match="has 3 classes and no test split"):
        with_test_classes(plain.take(plain.labels < 3))
    only_train = replace(letters, splits=np.full(len(letters), "train"))
    with pytest.raises(ValueError, match="no 'test'"):
        with_test_classes(only_train)


def test_the_parts_of_a_fold_and_of_the_customary_way(letters: Pictures) -> None:
    whole = with_test_classes(letters)
    fold = with_fold(whole, 1, 4)
    assert fold.split("validation").classes == letters.classes[2:4]
    assert fold.split("test").names == whole.split("test").names
    steered = steered_by_test(whole)
    assert steered.split("validation").names == steered.split("test").names == whole.split("test").names
    assert steered.split("train").names == whole.split("train").names
    assert len({fingerprint_of(parts) for parts in (whole, fold, steered, with_fold(whole, 2, 4))}) == 4


def test_where_every_tested_class_is_trained_on_the_data_s_own_validation_stays(letters: Pictures) -> None:
    splits = np.array(["train", "validation", "test"] * len(letters.classes))  # of the three pictures of each class
    kinds = with_test_classes(replace(letters, splits=splits))
    assert (kinds.splits == splits).all()
    assert (with_fold(kinds, 1, 4).splits == splits).all()
    steered = steered_by_test(kinds)
    assert steered.splits is not None
    assert (steered.splits == "train").sum() == 2 * len(letters.classes)
    assert (steered.splits == "validation").sum() == (splits == "test").sum()
