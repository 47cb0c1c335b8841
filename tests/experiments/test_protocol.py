"""Protocols: every line of the papers' set-ups, written down here once more, and the errors of a file of one's own."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import lookalike.pooling
from lookalike import objectives
from lookalike.experiments.protocol import Protocol, column, load_protocol, names, settings_for
from lookalike.objectives.presets import preset_settings
from lookalike.training.settings import Settings

SMALL, LARGE = ("cub", "cars"), ("inshop", "sop")
BUILT_IN = (
    "ablation",
    "collage",
    "conventional",
    "fair",
    "fair-ccp",
    "fair-ccp-released",
    "libc",
    "poolings",
    "quick",
    "skewed-means",
    "tuning",
)

# (evaluate_every, patience) of the small sets and of the large ones.
STOPPING = {
    "fair": ((100, 15), (1000, 10)),
    "fair-ccp": ((25, 60), (250, 60)),
    "conventional": ((25, 15), (250, 10)),
    "tuning": ((100, 10), (1000, 7)),
    "ablation": ((25, 40), (250, 40)),
}
# folds, models, repeats, what is reported, how many collections, steered by, sizes with BN-Inception, 512-D by joining
SHAPES: dict[str, tuple[int, int, int, str, int, str, list[int], bool]] = {
    "fair": (4, 4, 3, "combinations", 81, "validation", [128], True),
    "fair-ccp": (4, 4, 1, "combinations", 1, "validation", [128], True),
    "conventional": (1, 1, 3, "best", 3, "test", [512], False),
    "tuning": (5, 1, 3, "mean", 3, "validation", [128], False),
    "ablation": (3, 1, 1, "mean", 1, "validation", [128], False),
}


@cache
def loaded(name: str) -> Protocol:
    return load_protocol(name)


def run(
    protocol: str | Protocol, data_set: str = "cub", loss: str = "c2", pooling: str = "average", **more: Any
) -> dict[str, Any]:
    chosen = loaded(protocol) if isinstance(protocol, str) else protocol
    found = settings_for(chosen, data_set=data_set, loss=loss, pooling=pooling, **more)
    Settings(**found)  # all of them are settings, with values that a run can have
    return found


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_names() -> None:
    assert names() == sorted(BUILT_IN)
    for name in names():
        assert loaded(name).name == name


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    protocol = loaded(name)
    folds, models, repeats, report, collections, steered_by, sizes, joined = SHAPES[name]
    assert (protocol.split.folds, protocol.split.models, protocol.repeats) == (folds, models, repeats)
    assert (protocol.report, protocol.split.steered_by, protocol.concatenate) == (report, steered_by, joined)
    assert protocol.sizes_for("bn_inception") == sizes
    assert protocol.backbones[0] == "bn_inception"
    assert len(protocol.runs) == models * repeats == len(set(protocol.runs))
    assert protocol.repeats**protocol.split.models == collections


def test_which_classes_are_held_out() -> None:
    assert [loaded("fair").held_out(fold) for fold in range(4)] == [0, 1, 2, 3]
    assert loaded("tuning").held_out(0) == 4
    assert loaded("ablation").held_out(0) == 2
    assert loaded("conventional").held_out(0) is None
    assert (run("tuning")["validation"], run("ablation")["validation"]) == (1 / 5, 1 / 3)
    assert run("fair")["validation_order"] == "contiguous"
    assert "validation" not in run("conventional")


@pytest.mark.parametrize("name", STOPPING)
def test_stopping(name: str) -> None:
    small, large = STOPPING[name]
    for data_sets, expected in ((SMALL, small), (LARGE, large)):
        for data_set in data_sets:
            found = run(name, data_set)
            assert (found["evaluate_every"], found["patience"]) == expected
            assert found["monitor"] == ("P@1" if name == "conventional" else "MAP@R")
            assert found["steps"] >= 1_000_000  # patience ends a run, nothing else


@pytest.mark.parametrize("name", STOPPING)
def test_optimiser_and_pictures(name: str) -> None:
    for data_set in SMALL + LARGE:
        found = run(name, data_set)
        assert (found["optimiser"], found["betas"]) == ("adam", (0.9, 0.99))
        assert (found["clip_norm"], found["clip_value"]) == (10, 10)
        assert (found["size"], found["crop"], found["flip"]) == (227, "area", True)
        assert (found["freeze_backbone"], found["freeze_batch_norm"]) == (False, True)
        assert (found["backbone"], found["start"], found["normalise"]) == ("bn_inception", "glorot", "l2")
        assert found["preset"] == data_set
        if name != "conventional":
            assert (found["lr"], found["schedule"], found["weight_decay"]) == (1e-5, "constant", 1e-4)
            assert (found["batch_size"], found["per_class"], found["dim"]) == (32, 4, 128)


def test_conventional_by_backbone() -> None:
    for data_set, lr in (("cub", 1e-5), ("cars", 1e-4), ("inshop", 1e-4), ("sop", 1e-4)):
        inception, resnet = (run("conventional", data_set, backbone=name) for name in ("bn_inception", "resnet50"))
        assert inception["lr"] == resnet["lr"] == lr
        assert inception["schedule"] == resnet["schedule"] == "plateau"
        assert (inception["weight_decay"], resnet["weight_decay"]) == (1e-4, 4e-4)
        assert (inception["batch_size"], resnet["batch_size"]) == (128, 112)
        assert inception["per_class"] == resnet["per_class"] == 4
        assert inception["dim"] == resnet["dim"] == 512
    assert run("conventional", backbone="resnet50", size=128)["dim"] == 128
    other = run("conventional", backbone="vit_small_patch16_224")
    assert (other["backbone"], other["batch_size"], other["dim"]) == ("vit_small_patch16_224", 128, 512)
    assert loaded("conventional").poolings == ["average+max", "max+gsp"]
    assert loaded("fair").poolings == ["average", "gsp"]
    inside = run("conventional", "sop", pooling="max+gsp")["pooling_settings"]
    assert (inside["num_prototypes"], inside["keep"]) == (128, 0.3)


@pytest.mark.parametrize("loss", ["proxy-anchor", "proxy-nca++", "soft-triple"])
def test_proxy_losses(loss: str) -> None:
    for data_set, interval in (("cub", 100), ("sop", 1000)):
        found = run("fair", data_set, loss, "gsp")
        assert (found["batch_size"], found["per_class"], found["proxy_lr"]) == (32, 1, 100)
        assert found["warm_up"] == interval
        assert found["pooling_settings"]["sharpness"] == 0.5
        assert found["pooling_settings"]["delay"] == interval
        assert found["lr"] == (5e-6 if (loss, data_set) == ("proxy-anchor", "sop") else 1e-5)
    assert run("fair-ccp", "sop", loss)["lr"] == 1e-5
    assert run("fair-ccp", "sop", loss)["warm_up"] == 250


@pytest.mark.parametrize("loss", ["c1", "c2", "ms", "triplet"])
def test_pair_losses(loss: str) -> None:
    found = run("fair", "inshop", loss, "gsp")
    assert (found["per_class"], found["warm_up"], found["pooling_settings"]["sharpness"]) == (4, 0, 5)
    assert found["pooling_settings"]["delay"] == 0
    assert "proxy_lr" not in found


def test_temperature_differs_between_the_chapters() -> None:
    for name, temperature in (("fair", 0.11), ("conventional", 0.11), ("fair-ccp", 0.1), ("ablation", 0.1)):
        found = run(name, "cars", "proxy-nca++")
        settings = {**preset_settings(found["loss"], found["preset"]), **found.get("loss_settings", {})}
        assert settings["temperature"] == temperature


@pytest.mark.parametrize("name", ["fair", "conventional", "tuning"])
def test_generalized_sum_pooling(name: str) -> None:
    for data_set in SMALL + LARGE:
        found = run(name, data_set, "c2", "gsp", methods=["zero-shot"])
        assert found["pooling_settings"] == {
            "num_prototypes": 64 if data_set in SMALL else 128,
            "keep": 0.3,
            "sharpness": 5,
            "init": "k-centre-released",
            "memory": 1024,
            "delay": 0,
        }
        assert (found["zero_shot"], found["zero_shot_settings"]) == (
            0.1,
            {"ridge": 0.05, "scale": 9.5, "printed": False},
        )
    assert "zero_shot" not in run(name, pooling="gsp")
    assert run(name, pooling="average")["pooling_settings"] == {}


def test_zero_shot_without_selection() -> None:
    found = run("fair", methods=["zero-shot"], pooling="average")
    assert (found["pooling"], found["pooling_settings"]["keep"]) == ("gsp", 1)
    assert run("fair", pooling="average")["pooling"] == "average"


def test_variants_of_the_memory() -> None:
    expected = {
        "S": {"cub": 3, "cars": 3, "inshop": 100, "sop": 400},
        "L": {"cub": 25, "cars": 25, "inshop": 400, "sop": 1400},
    }
    for variant, by_data_set in expected.items():
        for data_set, batches in by_data_set.items():
            found = run("fair", data_set, "c1", methods=["memory"], variant=variant)
            assert (found["memory"], found["memory_start"], found["memory_form"]) == (batches, 1000, "official")
    assert run("fair", methods=["memory"])["memory"] == 25
    assert "memory" not in run("fair")


def test_variants_of_soft_triple() -> None:
    for data_set in SMALL + LARGE:
        small, large = (run("fair", data_set, "soft-triple", variant=variant) for variant in ("S", "L"))
        assert small["loss_settings"] == {"centres_per_class": 1}
        assert large["loss_settings"] == {"centres_per_class": 10 if data_set in SMALL else 4}


@pytest.mark.parametrize(
    ("name", "small", "large"),
    [
        ("fair", (25, 60), (250, 60)),
        ("fair-ccp", (25, 60), (250, 60)),
        ("conventional", (25, 15), (250, 10)),
        ("ablation", (25, 40), (250, 40)),
    ],
)
def test_chance_constrained_programming(name: str, small: tuple[int, int], large: tuple[int, int]) -> None:
    for data_set in SMALL + LARGE:
        found = run(name, data_set, methods=["ccp"])
        assert (found["ccp"], found["normalise"]) == (True, "l2")
        assert run(name, data_set)["normalise"] == "l2"  # one normalisation for all rows of a table
        assert (found["ccp_proxies"], found["ccp_pool"]) == ((8, 12) if data_set in SMALL else (4, 7))
        assert (found["ccp_pull"], found["ccp_patience"], found["ccp_in_batch"]) == (2e-4, 3, 0)
        assert (found["evaluate_every"], found["patience"]) == (small if data_set in SMALL else large)
        assert run(name, data_set, methods=["ccp"], variant="S")["ccp_proxies"] == 1


def test_chance_constrained_programming_as_released() -> None:
    """Clipped in every row, and 0.1 of the loss inside the batch; the rest is fair-ccp."""
    for methods in ([], ["ccp"], ["memory"]):
        printed = run("fair-ccp", methods=methods)
        released = run("fair-ccp-released", methods=methods)
        assert (printed["normalise"], released["normalise"]) == ("l2", "clip")
        assert released.get("ccp_in_batch", 0) == (0.1 if methods == ["ccp"] else 0)
        different = {name for name in released if released[name] != printed.get(name)}
        assert different <= {"normalise", "betas", "ccp_in_batch", "ccp_printed"}


# Of the comparison in section 5.3.5; average pooling, max, average+max, crow, gem and smk have no settings there.
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "average": {},
    "max": {},
    "average+max": {},
    "crow": {},
    "gem": {},
    "smk": {},
    "cbam": {"kernel": 3, "reduction": 1},
    "delf": {"hidden": 512, "unit_features": False},
    "gemax": {"ridge": 1.0},
    "gsop": {"reduced": 128, "spatial": True, "side": 7, "centred": False},
    "otp": {
        "num_prototypes": 8,
        "cost": "distance",
        "sharpness": 2.0,
        "iterations": 10,
        "init": "k-centre-released",
        "memory": 1024,
    },
    "netvlad": {"num_prototypes": 8, "normalise_features": False},
    "solar": {"reduction": 1, "zero_start": False},
    "weldon": {"largest": 3, "smallest": 3, "sums": True},
}


@pytest.mark.parametrize("name", ["fair", "poolings"])
@pytest.mark.parametrize("pooling", ALTERNATIVES)
def test_settings_of_the_alternatives(name: str, pooling: str) -> None:
    for loss, delay in (("c2", 0), ("proxy-nca++", 100)):
        expected = dict(ALTERNATIVES[pooling])
        if pooling == "otp":
            expected["delay"] = delay
        found = run(name, "cub", loss, pooling)
        assert found["pooling_settings"] == expected
        assert "zero_shot" not in found
    quick = run("quick", "cub", "c2", pooling)["pooling_settings"]
    assert lookalike.pooling.create(pooling, 16, **quick).extra_repr() == create_default(pooling).extra_repr()


def create_default(pooling: str) -> lookalike.pooling.Pooling:
    return lookalike.pooling.create(pooling, 16)


@pytest.mark.parametrize(("name", "weight", "keep"), [("poolings", 0.1, 0.3), ("collage", 0.5, 0.2)])
def test_the_comparison_of_poolings(name: str, weight: float, keep: float) -> None:
    rows = [str(choice) for choice in loaded(name).pooling_choices]
    both_sizes = [f"{pooling}(dim=8192, num_prototypes=64)" for pooling in ("otp", "netvlad")]
    assert sorted(rows) == sorted([*ALTERNATIVES, *both_sizes, "gsp", "max+gsp", "gem+gsp"])
    for pooling in ("gsp", "max+gsp", "gem+gsp"):
        found = run(name, "cub", "proxy-nca++", pooling)
        assert (found["zero_shot"], found["pooling_settings"]["keep"]) == (weight, keep)
        assert found["zero_shot_settings"]["ridge"] == 0.05


def test_the_collage() -> None:
    protocol = loaded("collage")
    assert (protocol.split.folds, protocol.split.models, protocol.split.steered_by) == (1, 1, "nothing")
    assert (protocol.backbones, protocol.report) == (["bottleneck20"], "mean")
    for loss in ("c2", "proxy-nca++"):
        found = run("collage", "collage", loss, "gsp")
        assert (found["batch_size"], found["per_class"], found["lr"]) == (64, 4, 1e-3)
        assert (found["schedule"], found["plateau_patience"], found["evaluate_every"]) == ("plateau", 5, 450)
        assert found["validation"] == 0
        assert (found["size"], found["crop"], found["flip"], found["dim"]) == (64, "none", False, 128)
        inside = found["pooling_settings"]
        assert (inside["num_prototypes"], inside["keep"], inside["sharpness"]) == (64, 0.2, 10)


def test_protocols_name_the_losses_and_methods_of_their_papers() -> None:
    rows = {name: (loaded(name).default_losses, loaded(name).default_methods) for name in names()}
    assert rows["fair"] == rows["conventional"] == rows["quick"] == (["c2"], ["none"])
    assert rows["libc"] == (["libc"], ["none"])
    assert rows["poolings"] == rows["collage"] == (["c2", "proxy-nca++"], ["none"])
    assert rows["fair-ccp"] == rows["fair-ccp-released"] == rows["ablation"] == (["c2"], ["none", "ccp"])
    table_1 = ["ms", "n-pair", "lifted-structure-song", "proxy-nca", "proxy-anchor"]
    assert rows["skewed-means"] == (table_1, ["none", "centres"])


def test_deviations() -> None:
    """Inherited, dropped one by one or all, and shown where they concern a row."""
    fair, conventional = loaded("fair").deviations, loaded("conventional").deviations
    assert set(fair) < set(conventional)
    assert loaded("quick").deviations == {}
    assert "start, count_start" in fair
    assert {"start, count_start", "clip_norm, clip_value"}.isdisjoint(loaded("libc").deviations)
    for name in ("fair-ccp", "fair-ccp-released"):  # the printed text has both
        assert {"3.2.4", "3.3.2.1"} <= set(re.findall(r"[\d.]*\d", loaded(name).deviations["normalise"]))
    for name in names():
        assert all(reason.strip() and not reason.endswith(".") for reason in loaded(name).deviations.values())

    def subjects(**settings: Any) -> set[str]:
        return set(loaded("fair").deviations_of([{"pooling": "average", **settings}]))

    plain = subjects()
    assert {"crop", "steps", "stopping", "clip_norm, clip_value"} <= plain
    assert plain - subjects(crop="pixels", clip_value=None, steps=5) == {"crop", "steps", "clip_norm, clip_value"}
    assert not {"gsp start", "memory", "zero-shot loss", "cbam", "gem+gsp"} & plain
    assert subjects(pooling="gem+gsp", zero_shot=0.1) - plain == {
        "gsp solver",
        "gsp start",
        "gem+gsp",
        "zero-shot loss",
    }
    assert subjects(pooling="cbam", memory=25) - plain == {"cbam", "memory"}


def test_every_run_has_its_seed_and_nothing_else_of_its_own() -> None:
    protocol = loaded("fair")
    found = [run(protocol, fold=fold, repeat=repeat) for fold, repeat in protocol.runs]
    assert len({settings["seed"] for settings in found}) == 12
    assert len({str(sorted({**settings, "seed": 0}.items())) for settings in found}) == 1
    other = settings_for(protocol, data_set="cub", loss="ms", pooling="gsp", fold=2, repeat=1)
    assert other["seed"] == run(protocol, fold=2, repeat=1)["seed"]  # so that methods are compared from the same draws


def test_sizes() -> None:
    assert run("fair", size=128)["dim"] == run("fair", size=512)["dim"] == 128  # 512 is four of 128
    for name, size, known in (("fair", 64, "128, 512"), ("tuning", 512, "128"), ("conventional", 128, "512")):
        with pytest.raises(ValueError, match=f"^size must be one of {known} in the protocol {name} .*, got {size}$"):
            run(name, size=size)


def test_other_data_sets() -> None:
    assert [column(name) for name in ("cub", "cars", "inshop", "sop")] == ["cub", "cars", "inshop", "sop"]
    assert column("birds/") == column("birds/", classes=1000) == "cub"
    assert column("shoes.csv", classes=1001) == "sop"
    assert column("aircraft") == "cub"
    small, large = run("fair", "glyphs", classes=412), run("fair", "faces", classes=9000)
    assert (small["preset"], small["evaluate_every"]) == ("cub", 100)
    assert (large["preset"], large["evaluate_every"]) == ("sop", 1000)
    assert column("cub", classes=5000) == "cub"


@pytest.mark.parametrize(
    ("data_set", "shape", "network", "lr", "decay", "temperature"),
    [
        ("cub", (6, 9), (1, 2), 1.564e-4, 6.06e-6, 0.2),
        ("cars", (10, 7), (2, 8), 3.668e-4, 2.55e-9, 1 / 9),
        ("sop", (15, 6), (1, 8), 2.472e-4, 2.77e-13, 0.605),
        ("inshop", (14, 4), (1, 4), 1.127e-4, 1.06e-7, 0.186),
    ],
)
def test_libc(data_set: str, shape: Any, network: Any, lr: float, decay: float, temperature: float) -> None:
    for pooling, methods in (("max", []), ("max+gsp", ["zero-shot"]), ("weighted-max+gsp", [])):
        found = run("libc", data_set, "libc", pooling, methods=methods)
        assert (found["batch_size"] // found["per_class"], found["per_class"]) == shape
        assert (found["lr"], found["weight_decay"], found["optimiser"]) == (lr, decay, "radam")
        assert (found["erase"], found["crop"], found["reshape"]) == (0.5, "wide", data_set == "cub")
        epoch = found["evaluate_every"]
        assert found["steps"] == 70 * epoch
        assert found["restarts"] == (30 * epoch, 50 * epoch)
        assert found["restart_lr"] == "initial"
        assert (found["dim"], found["backbone"], found["patience"]) == (512, "resnet50", None)
        assert found.get("zero_shot", 0) == (0 if pooling == "max" else 0.1)
        chosen = objectives.create("libc", 100, 512, preset=found["preset"]).settings
        assert (chosen["blocks"], chosen["heads"], chosen["temperature"]) == (*network, temperature)
        assert chosen["concatenate"] == (data_set == "cars")
    beside = run("libc", data_set, "c1", "max", methods=["libc"])
    assert (beside["libc"], beside["per_class"]) == (1.0, shape[1])
    for protocol in ("quick", "fair", "conventional"):
        assert run(protocol, data_set, "c1", methods=["libc"])["libc"] == 1.0


@pytest.mark.parametrize(
    ("data_set", "lr", "epochs", "delta"), [("cub", 1e-4, 40, 0.55), ("cars", 1e-4, 40, 0.45), ("sop", 6e-4, 60, 0.5)]
)
def test_skewed_means(data_set: str, lr: float, epochs: int, delta: float) -> None:
    for loss in ("ms", "n-pair", "lifted-structure-song", "proxy-nca", "proxy-anchor"):
        found = run("skewed-means", data_set, loss, "average", methods=["centres"])
        assert (found["optimiser"], found["lr"], found["size"], found["dim"]) == ("adamw", lr, 224, 512)
        assert found["steps"] == epochs * found["evaluate_every"]
        settings = found["centres_settings"]
        assert (found["centres"], settings["margin"], settings["hinge"]) == (0.1, delta, True)
        assert found.get("proxy_lr", 1.0) == (100.0 if loss.startswith("proxy") else 1.0)
        assert "centres" not in run("skewed-means", data_set, loss, "average")


def test_quick_is_quick() -> None:
    for loss in ("c2", "proxy-anchor"):
        found = run("quick", "glyphs", loss, "gsp", methods=["zero-shot"])
        assert found["freeze_backbone"]
        assert (found["backbone"], found["steps"], found["warm_up"]) == ("efficientnet_lite0", 300, 0)
        assert "init" not in found["pooling_settings"]
        assert found["lr"] is None
    memory = run("quick", "sop", methods=["memory"])
    assert memory["memory_start"] + memory["memory"] < memory["steps"]
    assert len(loaded("quick").runs) == 1
    assert loaded("quick").tables == []


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    text = """
base: fair
name: mine
repeats: 2
training: {lr: 1e-4, train_stages: 2}
losses: {soft-triple: {loss_settings: {scale: 10.0}}}
methods: {centres: {centres: 0.2, centres_settings: {knob: -1.0}}}
"""
    protocol = load_protocol(written(tmp_path, text))
    found = run(protocol, "sop", "soft-triple", methods=["centres"])
    assert (protocol.name, protocol.repeats, protocol.split.folds) == ("mine", 2, 4)
    assert (found["lr"], found["train_stages"], found["weight_decay"]) == (1e-4, 2, 1e-4)
    assert found["loss_settings"] == {"scale": 10.0, "centres_per_class": 4}
    assert (found["centres"], found["centres_settings"]) == (0.2, {"knob": -1.0})
    (tmp_path / "further.yaml").write_text("base: mine.yaml\nrepeats: 5\n", encoding="utf-8")
    assert run(load_protocol(tmp_path / "further.yaml"))["train_stages"] == 2
    assert load_protocol(tmp_path / "further.yaml").name == "further"  # no other protocol's, nor its published numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: fair\nrepeat: 2", r"a protocol has no key 'repeat' \(did you mean 'repeats'\?\)"),
        ("base: fiar", r"there is no protocol 'fiar' \(did you mean 'fair'\?\)"),
        ("bases: fair", r"a protocol has no key 'bases' \(did you mean 'base'\?\)"),
        ("base: mine.yaml", "is its own base"),
        ("name: mine", "a protocol lacks title, split, .*; begin with 'base: fair'"),
        ("- fair", "a protocol must hold settings by name, got list"),
        ("base: [", "it cannot be read as YAML"),
        ("base: fair\nrepeats: 0", "repeats must be at least 1, got 0"),
        ("base: fair\nreport: means", r"report must be one of .*, got 'means' \(did you mean 'mean'\?\)"),
        ("base: fair\nsplit: {folds: 4, model: 4}", r"split has no key 'model' \(did you mean 'models'\?\)"),
        ("base: fair\nsplit: {folds: 4}", "split lacks models"),
        ("base: fair\nsplit: {folds: 4, models: 5}", "split.models must be at most split.folds 4, got 5"),
        ("base: fair\nsplit: {folds: 1, models: 1}", "needs at least 2 folds"),
        (
            "base: fair\nsplit: {folds: 2, models: 1, steered_by: nothing}",
            "'test' and 'nothing' exactly 1, got 2 folds",
        ),
        ("base: fair\nsplit: 4", "split must hold folds, models and steered_by, got 4"),
        ("base: fair\nsizes: 128", "sizes must be a list of whole numbers"),
        ("base: fair\nsizes: {resnet50: [128]}", "sizes are written out by backbone and lack bn_inception"),
        ("base: fair\nbackbones: bn_inception", "backbones must be a list of names"),
        ("base: fair\npoolings: [gps]", r"there is no pooling 'gps' \(did you mean 'gsp'\?\)"),
        ("base: fair\ndeviations: {crop: 1}", "deviations.crop must say what differs and why, got 1"),
        ("base: fair\nconcatenate: 1", "concatenate must be true or false, got 1"),
        (
            "base: fair\ntraining: {patiance: 3}",
            r"training.patiance is no setting of a run \(did you mean 'patience'\?\)",
        ),
        ("base: fair\ntraining: {dim: 64}", "training.dim cannot be set here: 'sizes' of the protocol sets it"),
        ("base: fair\ntraining: {data: x}", "training.data cannot be set here: it is a setting of the command"),
        ("base: fair\ntraining: {lr: -1.0}", "lr must be finite and above 0, got -1.0"),
        ("base: fair\ntraining: {monitor: map}", "monitor must be one of"),
        (
            "base: fair\ntraining: {patience: {cub: 3, carz: 3}}",
            r"training.patience .*got 'carz' \(did you mean 'cars'\?\)",
        ),
        ("base: fair\ntraining: {patience: {cub: 3}}", "training.patience .* lacks cars, inshop, sop"),
        ("base: fair\ntraining: {patience: {birds: 3}}", "training.patience must be a value, or values by one of"),
        ("base: fair\ntraining: 3", "training must hold settings by name, got 3"),
        ("base: fair\nlosses: {proxy-ancor: {lr: 1.0}}", r"losses has an unknown name .*did you mean 'proxy-anchor'"),
        ("base: fair\nlosses: {pair: 4}", "losses.pair must hold settings by name, got 4"),
        ("base: fair\npooling: {gps: {}}", r"pooling has an unknown name 'gps' \(did you mean 'gsp'\?\)"),
        (
            "base: fair\npooling: {gsp: {pooling_settings: 3}}",
            "pooling.gsp.pooling_settings must hold settings by name",
        ),
        (
            "base: fair\nmethods: {zero_shot: {}}",
            r"methods has an unknown name 'zero_shot' \(did you mean 'zero-shot'\?\)",
        ),
        (
            "base: fair\nmethods: {ccp: {ccp_pol: 3}}",
            r"methods.ccp.ccp_pol is no setting of a run \(did you mean 'ccp_pool'",
        ),
    ],
)
def test_errors_of_a_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        load_protocol(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"methods": ["xbm"]}, "there is no method 'xbm'; there are: zero-shot, memory, ccp, centres"),
        ({"methods": ["zero_shot"]}, r"there is no method 'zero_shot' \(did you mean 'zero-shot'\?\)"),
        ({"methods": ["centres"]}, "the protocol fair does not say how centres is set"),
        ({"methods": "ccp"}, "methods must be a list of names, got 'ccp'"),
        ({"fold": 4}, "fold must be below 4 in the protocol fair, got 4"),
        ({"repeat": 3}, "repeat must be below 3 in the protocol fair, got 3"),
        ({"fold": -1}, "fold must be at least 0, got -1"),
        ({"variant": "M"}, "variant must be one of S, L, got 'M'"),
        ({"loss": "c3"}, "no objective is called 'c3'"),
    ],
)
def test_errors_of_a_run(keys: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        run("fair", **keys)


def test_there_is_no_such_protocol() -> None:
    with pytest.raises(ValueError, match=r"^there is no protocol 'fairr' \(did you mean 'fair'\?\)$"):
        load_protocol("fairr")
    with pytest.raises(ValueError, match=r"^there is no protocol 'nothing\.yaml'; there are: ablation, .* or a file$"):
        load_protocol("nothing.yaml")
