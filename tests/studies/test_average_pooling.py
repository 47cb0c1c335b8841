import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from lookalike_studies.average_pooling import study
from lookalike_studies.average_pooling.claims import has_learnt, judge_claims
from lookalike_studies.average_pooling.maths import (
    Cover,
    active_hulls,
    combine,
    cover_features,
    fit_classes,
    histogram_programme,
    measure_network,
    scale_to_disc,
)
from lookalike_studies.average_pooling.plots import cut_patch, nearest_positions
from lookalike_studies.average_pooling.study import STUDY
from lookalike_studies.framework.context import Context

from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.cli import main
from lookalike.geometry import covering_radius, greedy_k_centre
from lookalike.models import create_backbone
from lookalike.training import in_memory


def some(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 6), st.floats(0.1, 100))
@examples(max_examples=25, deadline=None)
def test_nearest_assignment_is_the_linear_programme_and_the_bound_holds(
    seed: int, places: int, count: int, scale: float
) -> None:
    features, prototypes = scale * some(seed, 3, places, 2), scale * some(seed + 1, count, 2)
    found = combine(features, prototypes)
    for i in range(3):
        assert histogram_programme(features[i], prototypes) == pytest.approx(found.histogram[i], abs=1e-9)
        radius = covering_radius(features[i], prototypes)
        assert found.radius[i] == pytest.approx(float(radius), rel=1e-12)
        assert found.error[i] <= radius * (1 + 1e-12)


def test_a_mixture_by_hand() -> None:
    features = torch.tensor([[[0.0, 0.0], [0.2, 0.0], [1.0, 0.0], [1.0, 0.4]]])
    found = combine(features, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert found.nearest.tolist() == [[0, 0, 1, 1]]
    assert found.histogram.tolist() == [[0.5, 0.5]]
    assert found.combination[0].tolist() == [0.5, 0.0]
    assert found.average[0].tolist() == pytest.approx([0.55, 0.1])
    assert float(found.error) == pytest.approx((0.05**2 + 0.1**2) ** 0.5)
    assert float(found.radius) == pytest.approx(0.4)
    assert found.violations(0.4, 0.0) == 0
    assert found.violations(0.1, 0.0) == 1
    assert found.violations(0.1, 0.1) == 0


def test_the_printed_square_is_false_beyond_a_radius_of_one() -> None:
    found = combine(torch.tensor([[[3.0, 0.0]]]), torch.tensor([[0.0, 0.0]]))
    assert float(found.error) <= float(found.radius)
    assert float(found.error) ** 2 > float(found.radius)


def test_active_prototypes_are_those_with_a_share() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    histogram = torch.tensor([[0.5, 0.3, 0.19, 0.01], [0.3, 0.5, 0.2, 0.0], [0.0, 0.0, 0.0, 1.0]])
    hulls = active_hulls(histogram, torch.tensor([0, 0, 1]), prototypes, least=0.02)
    assert hulls[0].tolist() == [[0, 0], [1, 0], [0, 1]]
    assert hulls[1].tolist() == [[5, 5]]


def test_softmax_regression_tells_classes_apart_and_scores_are_means_of_local_scores() -> None:
    labels = torch.arange(3).repeat_interleave(20)
    centres = torch.tensor([[0.5, 0.0], [-0.5, 0.5], [-0.5, -0.5]])
    features = centres[labels].unsqueeze(1) + 0.05 * some(0, 60, 9, 2).float()
    layer = fit_classes(features.mean(1), labels)
    assert (layer(features.mean(1)).argmax(-1) == labels).all()
    assert torch.allclose(layer(features).mean(1), layer(features.mean(1)), atol=1e-5)


def test_looking_at_separated_and_at_mixed_classes() -> None:
    labels = torch.arange(2).repeat_interleave(10)
    apart = torch.tensor([[0.6, 0.0], [-0.6, 0.0]])[labels].unsqueeze(1) + 0.05 * some(1, 20, 16, 2).float()
    separated = measure_network(apart, labels, 12, 0.02, 20)
    found = separated.metrics
    assert found["overlapping pairs"] == 0
    assert found["purity"] == found["accuracy"] == found["MAP@R"] == 1
    assert found["programmes"] == 20
    assert found["programme off by"] < 1e-6
    blurred = measure_network(0.3 * some(2, 20, 16, 2).float(), labels, 12, 0.02, 5)
    mixed = blurred.metrics
    assert mixed["overlapping pairs"] == 1
    assert mixed["purity"] < 0.8
    for one in (found, mixed):
        assert one["violations"] == 0
        assert 0 < one["largest error"] <= one["radius"]
    for seen in (separated, blurred):
        alone = cover_features(seen.features, labels, 12, 0.02).overlap
        assert (alone.pairs, alone.share) == (seen.cover.overlap.pairs, seen.cover.overlap.share)
    said = judge_claims([found, found | {"overlapping pairs": 1.0}], [separated.cover.overlap] * 2, 20, 2, 0.0)
    assert [claim.verdict for claim in said] == ["reproduced", "reproduced", "reproduced", "reproduced", "not tested"]
    assert "0 exceptions among 20 pictures and 2 networks" in said[1].here


def test_hulls_of_a_network_that_has_not_learnt_say_nothing() -> None:
    labels = torch.arange(4).repeat_interleave(8)
    mixed = measure_network(0.3 * some(2, 32, 16, 2).float(), labels, 12, 0.02, 5)
    assert mixed.metrics["overlapping pairs"] == 1
    on_hulls = judge_claims([mixed.metrics], [mixed.cover.overlap], 32, 4, 0.0)[2]
    assert on_hulls.verdict == "not tested"
    assert "before training 100 %, by" in on_hulls.here
    assert on_hulls.here.endswith("the classes have not been learnt")
    for pairs, expected in ((0.5, "reproduced"), (0.1, "partly"), (0.0, "not reproduced")):
        learnt = mixed.metrics | {"MAP@R": 0.5, "overlapping pairs": pairs}
        assert judge_claims([learnt], [mixed.cover.overlap], 32, 4, 0.0)[2].verdict == expected


def test_hulls_that_training_has_not_changed_say_nothing() -> None:
    labels = torch.arange(4).repeat_interleave(8)
    network = measure_network(0.3 * some(2, 32, 16, 2).float(), labels, 12, 0.02, 5)
    before = network.cover.overlap
    for lost, expected in ((0.05, "not tested"), (0.2, "reproduced")):
        learnt = network.metrics | {"MAP@R": 0.5, "overlap": before.share - lost}
        judged = judge_claims([learnt], [before], 32, 4, 0.1)[2]
        assert judged.verdict == expected
        assert ("hardly differ from those of the untrained network" in judged.here) == (expected == "not tested")


def test_a_network_may_start_from_a_classifier(tmp_path: Path) -> None:
    weights = create_backbone("resnet20", weights="none").network.state_dict()
    torch.save({**weights, "fc.weight": torch.zeros(10, 64), "fc.bias": torch.zeros(10)}, tmp_path / "classifier.th")
    random = study.PlaneLearner("resnet20", 1.0)
    learner = study.PlaneLearner("resnet20", 1.0, str(tmp_path / "classifier.th"))
    name = "stage3.2.conv2.weight"
    assert torch.equal(learner.backbone.network.state_dict()[name], weights[name])
    assert not torch.equal(random.backbone.network.state_dict()[name], weights[name])


def test_features_are_scaled_and_not_clipped() -> None:
    features = 5 * some(4, 3, 6, 2).float().numpy()
    scaled = scale_to_disc(features)
    norms = np.linalg.norm(scaled, axis=-1)
    assert norms.max() == pytest.approx(1)
    assert (norms > 0.999).sum() == 1
    assert scaled == pytest.approx(features / np.linalg.norm(features, axis=-1).max())
    assert not scale_to_disc(np.zeros((1, 2, 2), np.float32)).any()


def test_training_goes_on_until_hulls_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "data", 12)
    context = Context(tmp_path / "out", Display(StopRequest(), quiet=True), str(tmp_path / "data"))
    shares = iter([0.9, 0.85, 0.7])  # of training pictures, before training and after each cycle; then the real ones

    def cover(*arguments: Any) -> Cover:
        result = cover_features(*arguments)
        share = next(shares, None)
        if share is None:
            return result
        common = result.overlap._replace(common=share * (1 - torch.eye(3)), areas=torch.ones(3))
        return result._replace(overlap=common)

    monkeypatch.setattr(study, "cover_features", cover)
    monkeypatch.setattr(study.claims, "has_learnt", lambda *_: True)
    settings = STUDY.load_settings("miniature", {"margins": [0.5], "prototypes": 20, "cycles": 5})
    result = STUDY.run(settings, context)
    assert result.numbers["networks"][0]["steps"] == 2 * settings.steps  # 0.9, 0.85 after one cycle, 0.7 after two


def test_what_it_takes_to_have_learnt() -> None:
    assert has_learnt([0.1, 0.3], 10)
    assert not has_learnt([0.1, 0.29], 10)
    assert not has_learnt([float("nan")], 10)


@pytest.mark.parametrize(
    ("change", "which"), [({"violations": 1}, 1), ({"programme off by": 1e-3}, 0), ({"scores off by": 1.0}, 3)]
)
def test_whatever_does_not_hold_is_said(change: dict[str, float], which: int) -> None:
    found = measure_network(some(3, 6, 4, 2).float(), torch.tensor([0, 0, 0, 1, 1, 1]), 4, 0.02, 2)
    assert judge_claims([found.metrics], [found.cover.overlap], 6, 2, 0.0)[which].verdict == "reproduced"
    assert judge_claims([found.metrics | change], [found.cover.overlap], 6, 2, 0.0)[which].verdict == "not reproduced"


def test_patches_are_cut_around_the_nearest_place() -> None:
    pixels = np.zeros((2, 32, 32, 3), dtype=np.uint8)
    pixels[0, 20:24, 4:8] = 200  # row 5, column 1 of 8 x 8
    features = torch.zeros(2, 64, 2)
    features[0, 5 * 8 + 1] = 1.0
    features[1, 0] = 0.5
    assert nearest_positions(features, torch.tensor([1.0, 1.0])) == [(0, 41), (1, 0)]
    cut = cut_patch(pixels[0], 41, 64)
    assert cut.shape == (12, 13, 3)
    assert (cut[4:8, 4:8] == 200).all()
    assert cut[:, :12].sum() == 200 * 16 * 3
    assert (cut[:, 12] == 255).all()


def write_pictures(folder: Path, count: int) -> None:
    from PIL import Image

    chance = np.random.default_rng(0)
    for name in ("cat", "dog", "emu"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(chance.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")


def test_as_it_is_typed_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pictures(tmp_path / "data", 12)
    out = tmp_path / "out"
    arguments = ["study", "average-pooling", "--miniature", "--data", str(tmp_path / "data"), "--out", str(out)]
    assert main([*arguments, "--set", "margins=0.5, prototypes=20"]) == 0
    for name in ("partition", "patches", "hulls", "mixtures", "bound", "class-maps"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.svg").exists()
    numbers = json.loads((out / "numbers.json").read_text())
    assert [claim["verdict"] for claim in numbers["claims"][:2]] == ["reproduced", "reproduced"]
    (network,) = numbers["networks"]
    assert len(network["errors"]) == 15
    assert 0 <= network["untrained"]["overlap"] <= network["untrained"]["overlapping pairs"] <= 1
    assert numbers["claims"][2]["verdict"] == "not tested"  # two steps, and pictures that show nothing
    assert max(network["errors"]) <= network["radius"]
    assert all(error <= radius + 1e-6 for error, radius in zip(network["errors"], network["radii"], strict=True))
    assert "The thesis uses CIFAR-10; this run" in capsys.readouterr().out


def test_the_radius_is_that_of_greedy_k_centre() -> None:
    features = some(5, 4, 6, 2).float()
    found = measure_network(features, torch.tensor([0, 0, 1, 1]), 5, 0.02, 1)
    chosen = greedy_k_centre(features.flatten(0, 1), 5)
    assert found.cover.radius == float(chosen.radii[-1])
    assert found.cover.radius == pytest.approx(float(found.cover.mixtures.radius.max()))


def test_it_ends_where_pictures_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it was asked to stop, and trains")

    monkeypatch.setattr(in_memory, "shifted", refuse)
    write_pictures(tmp_path / "data", 12)
    stop = StopRequest()
    stop.requested = 2
    context = Context(tmp_path / "out", Display(stop, quiet=True), str(tmp_path / "data"))
    with pytest.raises(Stopped):
        STUDY.run(STUDY.load_settings("miniature"), context)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("names=[cat]", "names must be of at least two classes"),
        ("names=[cat, gnu]", "folder data has no class 'gnu'"),
        ("pictures=9", "folder data: the class cat has 3 training pictures, needs 6"),
        ("active=0", "active must be in (0, 1], got 0.0"),
        ("margins=3", "every one of margins must be in (0, 2], got 3.0"),
        ("seeds=[]", "seeds must name at least one, got none"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str
) -> None:
    write_pictures(tmp_path / "data", 12)
    out = tmp_path / "out"
    arguments = ["study", "average-pooling", "--miniature", "--data", str(tmp_path / "data"), "--out", str(out)]
    assert main([*arguments, "--set", changes]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lookalike study: {message}")
    assert said.count("\n") == 1
    assert not out.exists()
