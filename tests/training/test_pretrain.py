"""A backbone that learns to classify, on pictures that a few steps suffice for."""

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.data.arrays import table_of_arrays
from lookalike.data.pictures import Pictures
from lookalike.inference.preprocess import Preprocess, to_inputs
from lookalike.models import create_backbone
from lookalike.training import pretrain as module
from lookalike.training.pretrain import Recipe, create_classifier, learn, pretrain, read_pixels, shifted

COLOURS = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])
QUICK = {"steps": 60, "batch": 12}  # batch norm's running figures need about 40 to come near, with any seed
SHORT = {"steps": 3, "batch": 6}


def noisy(seed: int, each: int, side: int = 32) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures of three classes that differ in their colour."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), each)
    pixels = COLOURS[labels][:, None, None] + random.integers(-40, 41, (len(labels), side, side, 3))
    return pixels.astype(np.uint8), labels.astype(np.int64)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    parts = {"train": noisy(0, 12), "test": noisy(1, 5)}
    return table_of_arrays("colours", tmp_path_factory.mktemp("colours"), ["red", "green", "blue"], parts)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def refuse(*_: object) -> float:
    raise AssertionError("it was to be found, not learnt again")


def test_it_learns_and_the_file_is_what_backbones_take(both: Pictures, cache: Path) -> None:
    before = torch.random.get_rng_state()
    trained = pretrain(both.split("train"), test=both.split("test"), cache=cache, **QUICK)
    assert torch.equal(before, torch.random.get_rng_state())
    assert trained.accuracy == 1.0
    assert trained.loss < 0.5 * log(3)  # that of not knowing
    network = create_backbone("resnet20", weights=trained.file).network
    fresh = create_backbone("resnet20", weights="none").network
    assert trained.weights.keys() == network.state_dict().keys() == fresh.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(value, trained.weights[name])
    assert int(trained.weights["stem_norm.num_batches_tracked"]) == QUICK["steps"]


def test_what_was_learnt_once_is_found_again(both: Pictures, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = both.split("train"), both.split("test")
    first = pretrain(train, test=test, cache=cache, **SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(module, "learn", refuse)
        again = pretrain(train, test=test, cache=cache, **SHORT)
        assert (again.file, again.accuracy, again.loss) == (first.file, first.accuracy, first.loss)
        assert all(torch.equal(value, first.weights[name]) for name, value in again.weights.items())
        swapped = replace(train, labels=(train.labels + 1) % 3)
        others = [
            (train, {"seed": 1}),
            (train, {"steps": 4}),
            (train, {"rate": 0.2}),
            (train, {"augment": False}),
            (swapped, {}),
        ]
        for pictures, change in others:
            with pytest.raises(AssertionError, match="not learnt again"):
                pretrain(pictures, test=test, cache=cache, **{**SHORT, **change})
    first.file.write_bytes(first.file.read_bytes()[:1000])
    mended = pretrain(train, test=test, cache=cache, **SHORT)
    assert all(torch.equal(value, first.weights[name]) for name, value in mended.weights.items())


def test_it_stops_when_asked_and_nothing_is_left(
    both: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopRequest()
    steps = []

    def ask(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        steps.append(1)
        stop.requested = 2
        return shifted(pixels, rng)

    monkeypatch.setattr(module, "shifted", ask)
    display = Display(stop, quiet=True)
    with pytest.raises(Stopped):
        pretrain(both.split("train"), cache=tmp_path / "cache", display=display, **QUICK)
    assert len(steps) == 1
    with pytest.raises(Stopped):  # at the first picture that is read
        pretrain(both.split("train"), cache=tmp_path / "cache", display=display, **QUICK)
    assert len(steps) == 1
    assert list(tmp_path.iterdir()) == []


def test_weights_lie_where_the_features_are_cached(
    both: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path))
    trained = pretrain(both.split("train"), "resnet8-half", steps=1, batch=2)
    assert trained.file.parent == tmp_path / "pretraining"
    assert trained.file.name.startswith("resnet8-half-")
    assert trained.accuracy is None


def test_every_picture_is_drawn_before_one_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def note(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        drawn.extend(pixels[:, 0, 0, 0].tolist())
        return shifted(pixels, rng)

    monkeypatch.setattr(module, "shifted", note)
    pixels = np.zeros((10, 8, 8, 3), dtype=np.uint8) + np.arange(10, dtype=np.uint8)[:, None, None, None]
    recipe = Recipe(steps=5, batch=4)
    learn(create_classifier(recipe, 2), pixels, np.arange(10) % 2, recipe)
    assert sorted(drawn) == sorted(2 * list(range(10)))
    assert sorted(drawn[:10]) == list(range(10))


def test_adam_learns_pixels_with_an_input_of_its_own() -> None:
    pixels, labels = noisy(0, 12)
    spec = replace(create_backbone("resnet8-half").spec, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    recipe = Recipe("resnet8-half", steps=40, batch=12, rate=6e-3, optimizer="adam", augment=False)
    classifier = create_classifier(recipe, 3, spec)
    assert learn(classifier, pixels, labels, recipe) < 0.5 * log(3)
    assert classifier.backbone.spec == spec


def test_pictures_are_shifted_and_flipped_with_black_behind() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(1, 256, (200, 8, 8, 3), dtype=np.uint8)
    seen = set()
    for before, after in zip(pixels, shifted(pixels, random), strict=True):
        matches = [
            (down, right, flip)
            for down in range(-1, 2)
            for right in range(-1, 2)
            for flip in (False, True)
            if np.array_equal(after[:, ::-1] if flip else after, moved(before, down, right))
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 18  # every one of 3 x 3 shifts, in both directions


def moved(picture: NDArray[np.uint8], down: int, right: int) -> NDArray[np.uint8]:
    side = len(picture)
    result = np.zeros_like(picture)
    for row in range(side):
        for column in range(side):
            if 0 <= row - down < side and 0 <= column - right < side:
                result[row, column] = picture[row - down, column - right]
    return result


def test_inputs_are_those_of_evaluation(both: Pictures) -> None:
    spec = create_backbone("resnet20").spec
    mine = to_inputs(read_pixels(both, spec), spec)
    theirs = torch.stack([Preprocess(spec)(both.image(i)) for i in range(len(both))])
    assert torch.equal(mine, theirs)


def test_bad_input_is_refused_before_work(both: Pictures, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_pixels", refuse)
    train = both.split("train")
    with pytest.raises(ValueError, match="at least two classes, got 1"):
        pretrain(train.with_classes(["red"]), cache=cache)
    with pytest.raises(ValueError, match="the same 3 classes, got 2"):
        pretrain(train, test=both.split("test").with_classes(["red", "blue"]), cache=cache)
    for change, message in (({"steps": 0}, "steps must be"), ({"batch": 1}, "batch must be"), ({"rate": 0}, "rate")):
        with pytest.raises(ValueError, match=message):
            pretrain(train, cache=cache, **change)
    with pytest.raises(ValueError, match="no backbone is called"):
        pretrain(train, "resnet21", cache=cache)
