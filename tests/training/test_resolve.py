"""Open settings are decided from the data, the backbone and the machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from lookalike import pooling
from lookalike.training.resolve import fill_in, require_resumable, set_rates
from lookalike.training.settings import FREE_ON_RESUME, Settings


def decided(pretrained: bool = True, has_gpu: bool = False, classes: int = 100, **changes: object) -> Settings:
    return fill_in(Settings(**changes), classes, pretrained=pretrained, has_gpu=has_gpu)[0]  # type: ignore[arg-type]


def test_nothing_is_left_open() -> None:
    for pretrained in (True, False):
        for has_gpu in (True, False):
            settings = decided(pretrained, has_gpu)
            for name in ("freeze_backbone", "freeze_batch_norm", "start", "per_class", "proxy_lr", "warm_up"):
                assert getattr(settings, name) is not None, name
            assert settings.save_every == settings.evaluate_every == 100
            # and what is decided stays so: a resumed run asks again
            assert fill_in(settings, 100, pretrained=pretrained, has_gpu=has_gpu)[0] == settings


def test_prototypes_start_in_time_however_short_the_run() -> None:
    assert "memory" not in decided(pretrained=False, steps=1000).pooling_settings
    assert decided(pretrained=False, steps=60).pooling_settings["memory"] == 60 * 32 // 4
    few = {"pooling_settings": {"num_prototypes": 8}}
    assert decided(pretrained=False, steps=2, **few).pooling_settings["memory"] == 16
    _, notes = fill_in(Settings(steps=1), 100, pretrained=False, has_gpu=False)
    assert notes == ["too few steps for prototypes to start from data: the whole run is average pooling"]
    assert "memory" not in decided(pretrained=True, steps=2).pooling_settings  # they start before the first step


@pytest.mark.parametrize(
    ("pretrained", "has_gpu", "frozen", "lr", "start"),
    [
        (True, False, True, None, "pca"),
        (True, True, False, None, "pca"),
        (False, False, False, 1e-3, "random"),
        (False, True, False, 1e-3, "random"),
    ],
)
def test_what_depends_on_weights_and_machine(
    pretrained: bool, has_gpu: bool, frozen: bool, lr: float | None, start: str
) -> None:
    settings, notes = fill_in(Settings(), 100, pretrained=pretrained, has_gpu=has_gpu)
    assert (settings.freeze_backbone, settings.lr, settings.start) == (frozen, lr, start)
    assert settings.freeze_batch_norm == pretrained
    assert (notes != []) == frozen
    if frozen:
        assert notes[0].startswith("no GPU: the backbone stays frozen")


def test_last_stages_train_gently_without_a_gpu() -> None:
    settings, notes = fill_in(Settings(train_stages=2), 100, pretrained=True, has_gpu=False)
    assert settings.freeze_backbone
    assert not settings.head_only
    assert notes[0].startswith("no GPU: the backbone stays frozen, the head and 2 stages are trained")
    assert (settings.lr, settings.backbone_lr) == (None, None)  # until the head has started
    for stages, rate in ((1, 1e-5), (2, 1e-5), (3, 1e-5)):
        open_rates = decided(train_stages=stages)
        set_now = set_rates(open_rates, 5e-5)
        assert (set_now.lr, set_now.backbone_lr) == (5e-5, pytest.approx(rate / 5e-5))
        assert set_rates(set_now, 1.0) == set_now
    assert decided(train_stages=2, lr=1e-3).backbone_lr == 1.0
    assert decided(train_stages=2, backbone_lr=0.5).backbone_lr == 0.5
    assert decided(train_stages=2, start="random").backbone_lr == pytest.approx(0.01)  # of 1e-3
    assert decided(train_stages=2, has_gpu=True).backbone_lr == 1.0
    assert decided(train_stages=0).head_only


def test_what_was_said_is_kept() -> None:
    said = {
        "freeze_backbone": False,
        "freeze_batch_norm": False,
        "start": "random",
        "lr": 0.5,
        "per_class": 8,
        "proxy_lr": 3.0,
        "warm_up": 7,
        "save_every": 9,
        "precision": "16-mixed",
        "pooling_settings": {"sharpness": 2.0, "init": "random", "keep": 0.5},
    }
    settings = decided(**said)
    assert {name: getattr(settings, name) for name in said} == said


def test_a_frozen_backbone_with_random_weights_is_remarked_on() -> None:
    _, notes = fill_in(Settings(freeze_backbone=True), 100, pretrained=False, has_gpu=False)
    assert notes == ["the backbone is frozen with random weights: this is rarely useful"]


def test_batches_are_fitted_to_few_classes() -> None:
    settings, notes = fill_in(Settings(), 3, pretrained=True, has_gpu=True)
    assert (settings.batch_size, settings.per_class) == (12, 4)
    assert notes == ["4 pictures of each of 3 classes make batches of 12, not 32"]
    assert decided(classes=8).batch_size == 32
    assert decided(classes=7).batch_size == 28
    assert decided(loss="proxy-anchor", classes=7).batch_size == 7  # one picture of each class
    assert decided(batch_size=2).per_class == 2
    with pytest.raises(ValueError, match=r"^batch_size must be a multiple of per_class 5, got 32$"):
        decided(per_class=5)
    with pytest.raises(ValueError, match=r"^batch_size must be a multiple of per_class 8, got 4$"):
        decided(per_class=8, batch_size=4)


def test_proxies_have_their_own_rate_and_the_backbone_waits_for_them() -> None:
    settings = decided(has_gpu=True, loss="proxy-anchor", evaluate_every=250)
    assert (settings.proxy_lr, settings.warm_up, settings.per_class) == (100.0, 250, 1)
    assert decided(loss="proxy-anchor").warm_up == 0  # frozen: nothing has to wait
    assert decided(has_gpu=True).warm_up == 0
    assert decided(has_gpu=True, loss="proxy-anchor", warm_up=0).warm_up == 0
    assert decided(has_gpu=True, loss="proxy-anchor", steps=40, evaluate_every=40).warm_up == 10  # not to the end
    assert decided(pretrained=False, loss="proxy-anchor").warm_up == 0  # which knows nothing yet


def test_poolings_learn_faster_than_a_projection_that_keeps_its_start() -> None:
    decided_later = decided()
    assert decided_later.pooling_lr is None  # until the head has started
    settings = set_rates(decided_later, 4e-5)
    assert (settings.lr, settings.pooling_lr, settings.scalar_lr) == (4e-5, 25.0, 125.0)
    assert set_rates(decided(scalar_lr=2.0), 4e-5).scalar_lr == 2.0
    by_user = set_rates(decided(pooling_lr=3.0), 4e-5)
    assert (by_user.pooling_lr, by_user.scalar_lr) == (3.0, None)
    assert decided(lr=0.01).pooling_lr == decided(start="random").pooling_lr == 1.0


def test_the_papers_settings_are_a_preset() -> None:
    paper = decided(loss="proxy-anchor", preset="paper")
    assert (paper.pooling_lr, paper.pooling_settings) == (1.0, {"sharpness": 0.5})
    assert set_rates(paper, 4e-5).scalar_lr is None
    assert decided(preset="paper").pooling_settings == {"sharpness": 5.0}


def test_gsp_learns_how_much_it_selects() -> None:
    default = decided().pooling_settings
    assert default["learn_keep"]
    assert default["learn_sharpness"]
    layer = pooling.create("gsp", dim=8, **default)
    assert (float(layer.sharpness.detach()), layer.radius) == (pytest.approx(10.0), 20.0)
    for said in ({"sharpness": 5.0}, {"keep": 0.2}, {"num_prototypes": 64}):  # settings of a selection go together
        assert decided(pooling_settings=said).pooling_settings == {"sharpness": 5.0, **said}
    assert decided(zero_shot=0.1).pooling_settings == {"sharpness": 5.0}
    assert decided(pooling="gem+gsp").pooling_settings == {"sharpness": 5.0}


def test_presets() -> None:
    assert decided(loss="proxy-anchor", preset="sop").lr == 5e-6
    assert decided(loss="proxy-anchor", preset="cub").lr is None  # the start of the head decides
    assert decided(loss="proxy-anchor", preset="sop", lr=1.0).lr == 1.0
    assert decided(loss="proxy-anchor", preset="sop").pooling_settings["sharpness"] == 0.5
    assert decided(loss="proxy-anchor", pretrained=False).pooling_settings["sharpness"] == 5.0
    assert decided(loss="contrastive", preset="sop").pooling_settings["sharpness"] == 5.0


def test_prototypes_start_from_data_one_way_or_the_other() -> None:
    assert decided(pretrained=False).pooling_settings == {"sharpness": 5.0, "init": "k-centre"}
    assert decided(pooling="average").pooling_settings == {}
    settings = Settings(pooling_settings={"keep": 0.5})
    fill_in(settings, 10, pretrained=False, has_gpu=False)
    assert settings.pooling_settings == {"keep": 0.5}


def test_without_a_projection_there_is_no_pca() -> None:
    assert decided(dim=None).start == "random"


def test_unknown_losses_are_found_here() -> None:
    with pytest.raises(ValueError, match=r"no objective is called 'contrastiv' \(did you mean 'contrastive'"):
        decided(loss="contrastiv")


def test_a_run_resumes_with_the_settings_it_began_with() -> None:
    old = Settings(data="birds", dim=64, betas=(0.9, 0.99), pooling_settings={"keep": 0.3})
    require_resumable(old, replace(old), same_data=True)
    with pytest.raises(ValueError, match=r"changed are dim: 64 -> None$"):
        require_resumable(old, replace(old, dim=None, pooling_settings={"keep": 0.5}), same_data=True)
    with pytest.raises(ValueError, match=r"changed are pooling_settings: \{'keep': 0.3\} -> \{'keep': 0.5\}$"):
        require_resumable(old, replace(old, pooling_settings={"keep": 0.5}), same_data=True)
    with pytest.raises(ValueError, match="birds has changed since the run"):
        require_resumable(old, replace(old, pooling_settings={"keep": 0.5}), same_data=False)
    free = {"out": Path("b"), "resume": True, "steps": 7, "patience": None, "workers": 0, "cache": Path("c")}
    free |= {"device": "cpu", "devices": 2, "nodes": 3, "save_every": 5, "check": False, "strict": True}
    free |= {"engine": "torch", "view": "crop"}
    assert set(free) == FREE_ON_RESUME
    require_resumable(old, replace(old, **free), same_data=True)  # type: ignore[arg-type]
