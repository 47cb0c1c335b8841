"""Settings that follow the released code of the papers: decay, start of the projection, best weights, intervals."""

import json
from math import sqrt
from pathlib import Path

import pytest
import torch
from test_loop import CCP, settings

from lookalike import objectives
from lookalike.experiments.protocol import load_protocol, settings_for
from lookalike.models import Embedder
from lookalike.objectives import Composed, ZeroShot
from lookalike.training import train
from lookalike.training.loop import Progress, update_best
from lookalike.training.optim import create_optimizer
from lookalike.training.settings import Settings


def test_decay_reaches_everything_but_batch_norm() -> None:
    embedder = Embedder("resnet20", dim=8, pooling="gsp", pooling_settings={"learn_keep": True})
    terms = {"a": (1.0, objectives.create("proxy-anchor", 4, 8)), "b": (1.0, ZeroShot(4, 8))}
    chosen = Settings(lr=1e-3, proxy_lr=1.0, weight_decay=0.5, decay_all=True)
    optimizer = create_optimizer(embedder, Composed(terms), chosen)
    spared = []
    for group in optimizer.param_groups:
        if group["weight_decay"] == 0:
            spared += group["params"]
        else:
            assert group["weight_decay"] == 0.5
    norms = []
    for module in embedder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            norms += list(module.parameters())
    assert {id(parameter) for parameter in spared} == {id(parameter) for parameter in norms}


def test_the_start_counts_only_if_asked() -> None:
    for counts, best_step in ((True, 0), (False, 5)):
        progress = Progress()
        assert update_best(progress, {"MAP@R": 0.9}, "MAP@R", counts) == counts
        progress.step = 5
        update_best(progress, {"MAP@R": 0.5}, "MAP@R")
        assert progress.best_step == best_step
        assert progress.start == {"MAP@R": 0.9}


def test_a_run_that_does_not_improve(class_folders: Path, tmp_path: Path) -> None:
    """At a rate that changes nothing the start stays best, unless it does not count."""
    for counts in (True, False):
        out = tmp_path / str(counts)
        train(settings(class_folders, out, count_start=counts, start="glorot", lr=1e-12, evaluate_every=4))
        metrics = json.loads((out / "figures.json").read_text())
        assert (metrics["best_step"] == 0) == counts


def test_the_first_problem_of_ccp_begins_with_the_first_step(class_folders: Path, tmp_path: Path) -> None:
    """At a rate that changes nothing the first evaluation that counts is the best, and two more end the problem."""
    for counts, steps in ((True, 4), (False, 6)):
        out = tmp_path / str(counts)
        changes = {**CCP, "ccp_patience": 2, "patience": None, "steps": 6, "freeze_batch_norm": True}
        changes |= {"pooling": "average", "pooling_settings": {}}
        train(settings(class_folders, out, count_start=counts, start="glorot", lr=1e-12, **changes))
        first, *_ = json.loads((out / "figures.json").read_text())["problems"]
        assert first["problem steps"] == steps


def test_glorot_start(class_folders: Path, tmp_path: Path) -> None:
    train(settings(class_folders, tmp_path / "run", start="glorot", steps=1, lr=1e-12))
    weight = torch.load(tmp_path / "run" / "state" / "last.pt", weights_only=True)["learner"]
    projection = weight["model.head.projection.weight"]
    bound = sqrt(6 / sum(projection.shape))
    assert 0.97 * bound < projection.abs().max() <= bound + 1e-6


@pytest.mark.parametrize("evaluate_every", [None, 7])
def test_warm_up_follows_the_interval(evaluate_every: int | None) -> None:
    found = settings_for(
        load_protocol("fair"), data_set="cub", loss="proxy-anchor", pooling="gsp", evaluate_every=evaluate_every
    )
    interval = evaluate_every or 100
    assert found["evaluate_every"] == found["warm_up"] == found["pooling_settings"]["delay"] == interval
    assert (found["start"], found["decay_all"], found["count_start"]) == ("glorot", True, False)
