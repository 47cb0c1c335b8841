"""Settings: a bad value is one clear error, whatever way it came."""

from dataclasses import fields
from math import inf, nan
from typing import Any

import pytest

from lookalike._util.suggestions import did_you_mean
from lookalike.training.settings import FREE_ON_RESUME, Settings, names

COUNTS = ("steps", "batch_size", "views", "accumulate", "evaluate_every", "log_every", "devices", "nodes")
OPTIONAL_COUNTS = ("dim", "per_class", "patience", "save_every", "size")
FROM_ZERO = ("seed", "workers", "warm_up", "train_stages")
ABOVE_ZERO = ("lr", "proxy_lr", "clip_norm", "clip_value", "median_norm", "backbone_lr", "pooling_lr")
SHARES = ("validation", "ema")
CHOICES = {
    "normalise": "l3",
    "start": "pcaa",
    "prototypes_from": "picture",
    "preset": "cars196",
    "crop": "Area",
    "validation_order": "seed",
    "optimiser": "adams",
    "schedule": "cosin",
    "monitor": "map@r",
    "precision": "bf16",
}
SWITCHES = ("resume", "strict", "check", "flip", "freeze_backbone", "freeze_batch_norm")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *((name, 0, "must be at least 1, got 0") for name in (*COUNTS, *OPTIONAL_COUNTS)),
        *((name, -1, "must be at least 0, got -1") for name in FROM_ZERO),
        *((name, 0.0, "must be finite and above 0, got 0.0") for name in ABOVE_ZERO),
        *((name, -1.0, "must be finite and above 0, got -1.0") for name in ABOVE_ZERO),
        *((name, value, f"must be finite and above 0, got {value}") for name in ABOVE_ZERO for value in (inf, nan)),
        *((name, value, rf"must be in \[0, 1\), got {value}") for name in SHARES for value in (-0.1, 1, 1.0, nan)),
        *((name, value, f"must be one of .*, got '{value}'") for name, value in CHOICES.items()),
        *(("weight_decay", value, f"must be finite and at least 0, got {value}") for value in (-1e-4, inf, nan)),
    ],
)
def test_bad_values(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} {message}") as caught:
        Settings(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *((name, 2.5, "must be a whole number, got 2.5") for name in (*COUNTS, *OPTIONAL_COUNTS, *FROM_ZERO)),
        *((name, True, "must be a whole number, got True") for name in COUNTS),
        *((name, None, "must be a whole number, got None") for name in (*COUNTS, "seed")),
        *((name, "1e-4", "must be a number, got '1e-4'") for name in (*ABOVE_ZERO, "weight_decay")),
        *((name, None, "must be a number") for name in ("median_norm", "weight_decay")),
        *((name, "0.5", "must be a number, got '0.5'") for name in SHARES),
        *((name, "yes", "must be true or false, got 'yes'") for name in SWITCHES),
        *((name, 1, "must be true or false, got 1") for name in SWITCHES),
        *((name, None, "must be settings by name, got None") for name in ("pooling_settings", "loss_settings")),
        *((name, [1], r"must be settings by name, got \[1\]") for name in ("pooling_settings", "loss_settings")),
    ],
)
def test_wrong_types(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} {message}"):
        Settings(**{name: value})


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 0.99, 0.999), (1.0, 0.9), (0.9, -0.1), (0.9, nan)])
def test_bad_betas(betas: Any) -> None:
    with pytest.raises(ValueError, match=r"betas must be (2 values|in \[0, 1\)), got"):
        Settings(betas=betas)


def test_choices_name_the_nearest() -> None:
    with pytest.raises(
        ValueError,
        match=r"^schedule must be one of constant, cosine, plateau, got 'cosin' \(did you mean 'cosine'\?\)$",
    ):
        Settings(schedule="cosin")  # type: ignore[arg-type]


def test_pca_needs_a_projection() -> None:
    with pytest.raises(ValueError, match="start pca needs a projection"):
        Settings(start="pca", dim=None)
    Settings(start="pca")
    Settings(dim=None)


def test_edges_that_are_good() -> None:
    Settings(validation=0, ema=0, weight_decay=0, warm_up=0, workers=0, seed=0, train_stages=0, betas=(0.0, 0.0))
    Settings(validation=0.999, ema=0.999, steps=1, batch_size=1, per_class=1, dim=1)


def test_every_setting_is_explained_and_every_free_one_exists() -> None:
    assert all(entry.metadata["help"] for entry in fields(Settings))
    assert set(names()) >= FREE_ON_RESUME
    assert names()[:2] == ["data", "out"]


def test_dicts_are_not_shared() -> None:
    Settings().pooling_settings["keep"] = 0.5
    assert Settings().pooling_settings == {}


def test_nearest() -> None:
    assert did_you_mean("poling", names()) == " (did you mean 'pooling'?)"
    assert did_you_mean("zzz", names()) == ""
    assert did_you_mean("", []) == ""
