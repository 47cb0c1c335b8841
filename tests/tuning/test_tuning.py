"""Searches: what is typed, what the papers searched, and trials that are shared, killed, pruned and that fail."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("optuna")

from lookalike._util.folder_lock import FolderInUse, FolderLock
from lookalike._util.signals import RunFailed
from lookalike.data.glyphs import glyphs
from lookalike.data.pictures import Pictures
from lookalike.executors.local import LocalExecutor
from lookalike.experiments.choices import Choice
from lookalike.experiments.plan import parse_methods
from lookalike.experiments.protocol import load_protocol
from lookalike.experiments.published import read_table
from lookalike.experiments.splits import with_test_classes
from lookalike.report.tuning_plots import gaussian_process, main_effect
from lookalike.training.settings import Settings
from lookalike.tuning import study as module
from lookalike.tuning.backend import open_storage, repair_journal
from lookalike.tuning.plans import load_plan, names
from lookalike.tuning.results import TrialResult, best_trial
from lookalike.tuning.space import as_overrides, grid, parse_space, space_of
from lookalike.tuning.study import Tuning
from lookalike.tuning.task import Task

SHARPNESS, PROTOTYPES = "pooling_settings.sharpness", "pooling_settings.num_prototypes"


@pytest.fixture(scope="module")
def letters() -> Pictures:
    return with_test_classes(glyphs(cells=1, size=32, per_class=3, train_classes=8, test_classes=4))


def task_of(letters: Pictures, search: str, **more: Any) -> Task:
    space = parse_space(search)
    lists = all(axis.kind == "list" for axis in space.values())
    wanted = {"points": grid(space, 0) if lists else None, "sampler": "grid" if lists else "tpe", **more}
    protocol = load_protocol(wanted.pop("protocol", "quick"))
    return Task(protocol, "letters", letters, Choice("c2"), Choice("gsp"), (), space, {"steps": 10}, **wanted)


class Pretended:
    """In the place of ``train``: three evaluations whose figures are known, and best at 64 prototypes, sharpness 5."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Settings] = []
        self.before: Callable[[Settings], None] = lambda _: None
        monkeypatch.setattr(module, "train", self)

    def __call__(self, settings: Settings, pictures: Pictures, on_evaluation: Any) -> dict[str, Any]:
        assert "validation" in set(pictures.splits if pictures.splits is not None else ())
        self.calls.append(settings)
        self.before(settings)
        value = self.value(settings)
        for step in (0, 5, 10):
            on_evaluation(step, {"MAP@R": value * step / 10, "P@1": 0.9})
        return {"best": {"MAP@R": value, "P@1": 0.9}, "steps": 10, "best_step": 10, "seconds": 0.1}

    @staticmethod
    def value(settings: Settings) -> float:
        inside = settings.pooling_settings
        away = log(inside["sharpness"] / 5) ** 2 + log(inside["num_prototypes"] / 64) ** 2
        return float(0.5 - away / 100 + settings.seed / 1000)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    return Pretended(monkeypatch)


def silent(_: str) -> None:
    pass


# what is typed


def test_lists_and_ranges_are_read() -> None:
    text = f"{PROTOTYPES}=[16, 32]; {SHARPNESS} = log(0.5,2e1);lr=uniform(1e-5, 1e-3); ccp_proxies=int(1, 12)"
    text += "; flip=[true, false]"
    space = parse_space(text)
    read = {name: (axis.kind, axis.values) for name, axis in space.items()}
    assert read == {
        PROTOTYPES: ("list", (16, 32)),
        SHARPNESS: ("log", (0.5, 20.0)),
        "lr": ("uniform", (1e-5, 1e-3)),
        "ccp_proxies": ("int", (1, 12)),
        "flip": ("list", (True, False)),
    }
    again = parse_space("; ".join(f"{name}={axis}" for name, axis in space.items()))
    assert again == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the search is empty"),
        (" ; ", "the search is empty"),
        ("lr", "name=values"),
        ("lr=", "name=values"),
        ("lr=0.1", "cannot be read: '0.1'"),
        ("lr=[]", "the list of lr is empty"),
        ("lr=[1e-3, 1e-3]", "has a value twice"),
        ("betas=[[0.9, 0.99]]", "numbers, words, true, false or null"),
        ("lr=logg(1, 2)", "there is no range 'logg' for lr .did you mean 'log'"),
        ("lr=log(0, 2)", "must begin above 0, got 0"),
        ("lr=log(2)", "needs two numbers"),
        ("lr=uniform(a, b)", "needs two numbers"),
        ("lr=uniform(2, 1)", "is empty: 2 must be below 1"),
        ("ccp_proxies=int(1, 2.5)", "needs whole numbers"),
        ("lr=log(1e-5, 1); lr=[1]", "names lr twice"),
        ("stesp=[1]", "there is no setting 'stesp' to search .did you mean 'steps'"),
        ("pooling_settings=[1]", "name one of them, as pooling_settings.NAME"),
        ("lr.rate=[1]", "lr has no settings of its own"),
        ("seed=[1, 2]", "seed is not searched"),
        ("monitor=[P@1]", "monitor is not searched"),
    ],
)
def test_bad_searches_get_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_space(text)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("pooling_settings.sharpnes=[1]", "gsp has no setting 'sharpnes'"),
        ("pooling_settings.keep=[0.3, 7]", "could have keep=7: keep must be in"),
        ("pooling_settings.num_prototypes=uniform(1, 8)", "num_prototypes must be a whole number"),
        ("loss_settings.margins=[1]", "no setting 'margins'"),
        ("lr=[fast]", "lr must be a number"),
        ("zero_shot=uniform(0.1, 1.5)", "zero_shot must be in"),
        ("ccp_pull=log(1e-6, 1)", "ccp_pull has no effect without ccp"),
        ("pooling=[gsp, gps]", "no pooling is called 'gps'"),
    ],
)
def test_what_no_trial_could_have_is_refused_beforehand(letters: Pictures, search: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        task_of(letters, search).check()


def test_the_test_classes_choose_nothing(letters: Pictures) -> None:
    with pytest.raises(ValueError, match="conventional is steered by the test classes"):
        task_of(letters, "lr=[1e-3]", protocol="conventional").check()


def test_a_searched_loss_brings_the_settings_that_the_protocol_has_for_it(letters: Pictures) -> None:
    task = task_of(letters, "loss=[c2, proxy-anchor]; lr=[1e-3]")
    found = {point["loss"]: task.plan(point).cells[0].settings for point in task.points or []}
    assert {name: each.pooling_settings["sharpness"] for name, each in found.items()} == {
        "c2": 5.0,
        "proxy-anchor": 0.5,
    }
    assert {each.steps for each in found.values()} == {10}
    assert {each.lr for each in found.values()} == {1e-3}


# what the papers searched


def test_the_factorial_is_that_of_the_thesis() -> None:
    runs = load_plan("factorial").runs
    short = [{name.rpartition(".")[2]: value for name, value in run.items()} for run in runs]
    printed = [each.settings for each in read_table("5.4") if each.loss == "contrastive-distance" and each.settings]
    assert short == printed
    space = space_of(runs)
    signs = np.array([[2 * axis.values.index(run[name]) - 1 for name, axis in space.items()] for run in runs])
    assert (signs[:, 3] == signs[:, :3].prod(1)).all(), "the half fraction that the file says it is"
    assert np.array_equal(signs.T @ signs, 8 * np.eye(4)), "every effect is measured by all runs, apart from the others"


def test_the_effects_of_the_printed_table() -> None:
    rows = [each for each in read_table("5.4") if each.loss == "contrastive-distance" and each.settings]
    records = [TrialResult(i, "done", dict(each.settings), each.mean) for i, each in enumerate(rows)]
    levels = {"num_prototypes": (16, 128), "keep": (0.3, 0.7), "sharpness": (0.5, 20), "zero_shot": (0.1, 0.5)}
    found = {name: main_effect(records, name, values) for name, values in levels.items()}
    assert found == pytest.approx({"num_prototypes": -0.25, "keep": -0.405, "sharpness": -2.785, "zero_shot": -1.83})


@pytest.mark.parametrize("name", names())
def test_named_plans_can_be_run(letters: Pictures, name: str) -> None:
    plan = load_plan(name)
    space = space_of(plan.runs) if plan.runs else parse_space(plan.search)
    points = plan.runs or (grid(space, 0) if plan.sampler == "grid" else None)
    [methods] = parse_methods(plan.methods)
    protocol = load_protocol(plan.protocol)
    loss, pooling = Choice(plan.loss), Choice(plan.pooling)
    task = Task(protocol, "letters", letters, loss, pooling, methods, space, plan.set, points)
    task.check()
    assert len(plan.open) >= 2
    settings = task.plan(next(task.extreme_points())).cells[0].settings
    assert (settings.ccp, settings.ccp_pool) == ((True, 12) if name == "pull-x-proxies" else (False, 12))
    assert (points is None, len(points or [])) == {
        "centre-gap": (False, 7),
        "factorial": (False, 8),
        "prototypes-x-sharpness": (False, 24),
        "pull-x-proxies": (True, 0),
    }[name]


# trials


def test_a_grid_is_done_once_and_not_again(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64, 128]; {SHARPNESS}=[0.5, 5]")
    said: list[str] = []
    records = Tuning(task, tmp_path / "a").work(6, said.append)
    assert sorted(as_text(record.params) for record in records) == sorted(map(as_text, task.points or []))
    assert len(pretended.calls) == len(said) == 6
    best = best_trial(records)
    assert best is not None
    assert best.params == {PROTOTYPES: 64, SHARPNESS: 5}
    assert best.value == 0.5
    assert best.curve == {0: 0.0, 5: 0.25, 10: 0.5}
    assert "num_prototypes=64, sharpness=5: MAP@R 50.00, 10 steps" in " ".join(said)
    assert said[-1].endswith("6 of 6")
    again = Tuning(task, tmp_path / "a")
    assert again.work(6, said.append) == records
    assert len(pretended.calls) == 6
    importance = again.importance()
    assert sum(importance.values()) == pytest.approx(1)
    # log(10)^2 against log(4)^2 and log(2)^2
    assert importance[SHARPNESS] > importance[PROTOTYPES] > 0


def test_a_second_command_on_the_folder_is_refused(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]")
    tuning = Tuning(task, tmp_path / "a")
    with FolderLock(tmp_path / "a"), pytest.raises(FolderInUse, match="another process"):
        tuning.work(2, silent)
    assert not pretended.calls
    assert len(tuning.work(2, silent)) == 2


def test_an_interrupted_trial_comes_first(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[0.5, 5]")
    dead = Tuning(task, tmp_path / "a")
    assert next(dead._proposals(4)) == 0  # proposed, and never heard of again
    dead.study.ask()  # killed before it had proposed anything
    records = Tuning(task, tmp_path / "a").work(4, silent)
    assert [record.state for record in records] == ["done"] * 4
    assert [record.params for record in records] == task.points
    assert len(pretended.calls) == 4


def test_a_worker_that_dies_behind_its_trial_does_not_repeat_it(
    letters: Pictures, tmp_path: Path, pretended: Pretended
) -> None:
    tuning = Tuning(task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]"), tmp_path / "a")
    before = tuning.work(2, silent)
    assert module.compute_trial(1, tuning).line == "trial 1: done before its worker was lost"
    assert len(pretended.calls) == 2
    assert tuning.trials() == before


def test_a_trial_waits_for_the_process_that_had_it(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    tuning = Tuning(task_of(letters, f"{PROTOTYPES}=[16]; {SHARPNESS}=[5]"), tmp_path / "a")
    dying, ended = FolderLock(tuning.folder(0) / "runs" / "f1-r1"), threading.Event()

    def end() -> None:
        ended.set()
        dying.release()

    def must_be_free(settings: Settings) -> None:
        if settings.out == dying.path:
            assert ended.is_set()

    pretended.before = must_be_free
    tuning.folder(0).mkdir(parents=True)
    with dying:
        threading.Timer(0.2, end).start()
        assert [trial.state for trial in tuning.work(1, silent)] == ["done"]


def test_no_trial_begins_if_nodes_differ(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    class Cluster(LocalExecutor):
        def check_nodes(self, inspect: Any, argument: Any) -> None:
            findings = inspect(argument)
            assert findings["the results folder"] == "shared"
            raise ValueError(f"differs in {sorted(findings)[0]}")

    tuning = Tuning(task_of(letters, f"{PROTOTYPES}=[16]; {SHARPNESS}=[5]"), tmp_path / "a")
    with pytest.raises(ValueError, match="differs in the pictures of glyphs"):
        tuning.work(1, silent, Cluster())
    assert not pretended.calls
    assert not tuning.trials()
    assert not list((tmp_path / "a").glob(".probe-*"))


def test_a_search_by_tpe_repeats_itself_whoever_asks(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=int(8, 256); {SHARPNESS}=log(0.1, 50)")
    whole = Tuning(task, tmp_path / "a").work(14, silent)
    for count in (3, 9, 14):
        parts = Tuning(task, tmp_path / "b").work(count, silent)
    assert [record.params for record in parts] == [record.params for record in whole]
    assert len({as_text(record.params) for record in whole}) == 14
    other = Tuning(replace(task, seed=1), tmp_path / "c").work(2, silent)
    assert other[0].params != whole[0].params
    assert all(8 <= record.params[PROTOTYPES] <= 256 for record in whole)
    assert len(pretended.calls) == 30


def test_gaussian_process_proposals_go_where_it_is_good(
    letters: Pictures, tmp_path: Path, pretended: Pretended
) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[64]; {SHARPNESS}=log(0.01, 100)", sampler="gp")
    records = Tuning(task, tmp_path / "a").work(14, silent)
    assert len(pretended.calls) == 14
    away = [abs(log(record.params[SHARPNESS] / 5)) for record in records]
    assert min(away[10:]) < 0.7 < max(away[:10])


def test_a_trial_is_the_mean_of_its_runs(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{SHARPNESS}=[5]; {PROTOTYPES}=[64]", protocol="tuning")
    [record] = Tuning(task, tmp_path / "a").work(1, silent)
    assert record.runs == [0.5, 0.501, 0.502]
    assert record.value == pytest.approx(0.501)
    assert [each.seed for each in pretended.calls] == [0, 1, 2]
    assert sorted(record.curve) == [0, 5, 10, 11, 16, 21, 22, 27, 32]
    assert record.curve[16] == pytest.approx((0.5 + 0.2505) / 2)
    assert record.steps == 30


def test_what_stays_below_the_median_is_pruned(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    points = [{PROTOTYPES: 64, SHARPNESS: value} for value in (4.0, 5.0, 6.0, 7.0, 8.0, 0.001, 5.1)]
    task = replace(task_of(letters, f"{PROTOTYPES}=[64]; {SHARPNESS}=log(0.0001, 20)"), points=points, prune=True)
    said: list[str] = []
    records = Tuning(task, tmp_path / "a").work(7, said.append)
    assert [record.state for record in records] == [*["done"] * 5, "pruned", "done"]
    assert list(records[5].curve) == [0, 5], "at the first evaluation that tells anything"
    assert records[5].value is None
    assert "pruned" in said[5]
    assert len(pretended.calls) == 7
    assert Tuning(replace(task, prune=False), tmp_path / "b").work(6, silent)[5].state == "done"


def test_settings_that_fail_are_told_and_a_machine_that_fails_stops_it(
    letters: Pictures, tmp_path: Path, pretended: Pretended
) -> None:
    def diverge(settings: Settings) -> None:
        if settings.pooling_settings["sharpness"] == 5:
            raise RunFailed("the loss is not finite\nmore")

    def full(_: Settings) -> None:
        raise RunFailed("no space left") from OSError("no space left")

    task = task_of(letters, f"{PROTOTYPES}=[64]; {SHARPNESS}=[0.5, 5, 7]")
    pretended.before = full
    with pytest.raises(RunFailed, match="no space left"):
        Tuning(task, tmp_path / "a").work(3, silent)
    pretended.before = diverge
    records = Tuning(task, tmp_path / "a").work(3, silent)
    assert Counter(record.state for record in records) == {"done": 2, "failed": 1}
    [failed] = [record for record in records if record.state == "failed"]
    assert failed.error == "the loss is not finite"
    assert "RunFailed" in (tmp_path / "a" / "trials" / f"{failed.number:04d}" / "log.txt").read_text()


def test_another_search_in_the_same_folder_is_refused(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]")
    Tuning(task, tmp_path / "a").work(1, silent)
    before = (tmp_path / "a" / "journal.log").read_bytes()
    other = task_of(letters, f"{PROTOTYPES}=[16, 32]; {SHARPNESS}=[5]")
    with pytest.raises(ValueError, match=r"holds another search: search was .*64.* and is .*32"):
        Tuning(other, tmp_path / "a")
    with pytest.raises(ValueError, match=r"settings was .*10.* and is .*20"):
        Tuning(replace(task, overrides={"steps": 20}), tmp_path / "a")
    with pytest.raises(ValueError, match="use the same --storage"):
        Tuning(task, tmp_path / "a", f"sqlite:///{tmp_path}/tuning.db")
    assert (tmp_path / "a" / "journal.log").read_bytes() == before
    assert len(Tuning(task, tmp_path / "a").work(2, silent)) == len(pretended.calls) == 2


def test_a_search_of_another_results_version_is_outdated_but_resumes(
    letters: Pictures, tmp_path: Path, pretended: Pretended
) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]")
    assert not Tuning(task, tmp_path / "a").is_outdated
    file = tmp_path / "a" / "tuning.json"
    content = json.loads(file.read_text())
    for old in ({"version": 1}, {"code": "0123456789abcdef"}):
        file.write_text(json.dumps({name: value for name, value in content.items() if name != "version"} | old))
        assert Tuning(task, tmp_path / "a").is_outdated
    assert len(Tuning(task, tmp_path / "a").work(1, silent)) == len(pretended.calls) == 1


def test_records_in_a_data_base(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    url = f"sqlite:///{tmp_path}/tuning.db"
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]")
    Tuning(task, tmp_path / "a", url).work(1, silent)
    records = Tuning(task, tmp_path / "a", url).work(2, silent)
    assert [record.params for record in records] == task.points
    assert len(pretended.calls) == 2
    assert not (tmp_path / "a" / "journal.log").exists()
    assert url not in (tmp_path / "a" / "tuning.json").read_text()
    with pytest.raises(ValueError, match=r"--storage nosuch://...@host/x cannot be opened"):
        open_storage("nosuch://me:secret@host/x", tmp_path / "journal.log")


def test_a_journal_that_ends_in_half_a_line_is_mended(letters: Pictures, tmp_path: Path, pretended: Pretended) -> None:
    task = task_of(letters, f"{PROTOTYPES}=[16, 64]; {SHARPNESS}=[5]")
    Tuning(task, tmp_path / "a").work(1, silent)
    journal = tmp_path / "a" / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code":4,"wor')
    assert [each.state for each in Tuning(task, tmp_path / "a").work(2, silent)] == ["done", "done"]
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    repair_journal(journal)  # nothing to do
    assert len(pretended.calls) == 2


def test_the_surface_goes_through_what_was_measured() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((30, 2))
    values = np.sin(3 * points[:, 0]) + points[:, 1]
    at = 0.2 + 0.6 * rng.random((20, 2))
    expected = np.sin(3 * at[:, 0]) + at[:, 1]
    assert np.abs(gaussian_process(points, values, at) - expected).max() < 0.1
    flat = gaussian_process(points, np.full(30, 7.0), at)
    assert np.allclose(flat, 7)


def as_text(params: dict[str, Any]) -> str:
    return json.dumps(as_overrides(params), sort_keys=True)
