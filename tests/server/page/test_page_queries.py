"""Probabilities, examples, groups, diversity and metadata filters on the page."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from page_helpers import as_shown, expect, hits_shown, search_with, serving, striped

from lookalike import index
from lookalike.index.querying import Options, compose_query, find
from lookalike.inference.model import TrainedModel
from lookalike.retrieval.calibration import Calibration
from lookalike.server import create_app


@pytest.fixture(scope="module")
def calibrated(collection: index.Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[index.Index]:
    """The same pictures, with two copies of one, calibrated so that the tests know what to expect."""
    path = tmp_path_factory.mktemp("calibrated") / "c.idx"
    shutil.copytree(collection.path, path)
    with index.open(path) as idx:
        first = striped(idx)
        names = ("copy1", "copy2")
        idx.add(
            [index.Item(name, first.path, "class3", {"n": 99, "place": "sea"}) for name in names],
            np.repeat(idx.vectors([first.id]), 2, 0),
        )
        farthest = idx.search(idx.vectors([first.id]), 60)[0][-1].distance
        calibration = Calibration(
            distances=[0.0, farthest],
            probabilities=[0.9, 0.1],
            nearest=np.linspace(0, 2, 99).tolist(),
            source="drawn pictures",
            queries=99,
            classes=8,
            same_size=7,
            other_size=57,
            unseen=True,
            error=0.0,
        )
        calibration.write(idx.path)
        yield idx


@pytest.fixture(scope="module")
def calibrated_address(calibrated: index.Index, model: TrainedModel) -> Iterator[str]:
    with serving(create_app(calibrated, model)) as url:
        yield url


def test_without_a_calibration_it_says_why(page: Any, collection: index.Index) -> None:
    expect(page.locator("#confidence")).to_be_disabled()
    expect(page.locator("#confidence-help")).to_contain_text("No probabilities")
    search_with(page, striped(collection))
    assert page.locator(".probability").count() == 0


def test_probabilities_and_a_cut(opening: Callable[..., Any], calibrated: index.Index, calibrated_address: str) -> None:
    page = opening(calibrated_address)
    expect(page.locator("#confidence-help")).to_contain_text("calibrated on drawn pictures")
    item = striped(calibrated)
    page.goto(f"{calibrated_address}#id={item.id}&k=60")
    page.reload()
    expect(page.locator("#hits .probability").first).to_be_visible()
    hits_shown(page)
    calibration = index.load_calibration(calibrated)
    assert calibration is not None
    query = calibrated.vectors([item.id])[0]
    hits = [result.hit for result in find(calibrated, query, Options(k=60, without=(item.id,))).results]
    percents = [min(99, max(1, round(100 * p))) for p in calibration.probability([hit.distance for hit in hits])]
    assert page.locator("#hits .probability").all_inner_texts() == [f"{percent} % the same" for percent in percents]
    page.locator("#confidence").select_option("0.8")
    expected = find(calibrated, query, Options(k=60, without=(item.id,), confidence=0.8), calibration).results
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(len(expected))
    assert 0 < len(expected) < 60
    page.locator("#hits .picture").first.click()
    expect(page.locator("#viewer-facts")).to_contain_text(f"{percents[0]} %")


def test_nothing_looks_the_same(opening: Callable[..., Any], calibrated_address: str) -> None:
    def far(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            route.fulfill(json={**content, "nothing": True, "p_value": 0.012})

        page.route("**/search", answer)

    page = opening(calibrated_address, before=far)
    page.locator("#items .picture").first.click()
    expect(page.locator("#notice-text")).to_contain_text("Nothing here looks the same")
    expect(page.locator("#notice-text")).to_contain_text("1.2 %")
    expect(page.locator("#hits .card")).to_have_count(0)
    page.locator("#notice-action").click()
    expect(page.locator("#hits .card")).to_have_count(12)


def test_near_duplicates_are_one_tile(
    opening: Callable[..., Any], calibrated: index.Index, calibrated_address: str
) -> None:
    page = opening(calibrated_address)
    item = striped(calibrated)
    page.goto(f"{calibrated_address}#id={item.id}")
    page.reload()
    hits_shown(page)
    page.locator("label:has(#group)").click()
    expect(page.locator("#hits .duplicates").first).to_contain_text("near-duplicate")
    query = calibrated.vectors([item.id])[0]
    grouped = find(calibrated, query, Options(k=12, without=(item.id,), group=True)).results
    assert hits_shown(page) == as_shown([result.hit for result in grouped])
    count = len(grouped[0].duplicates)
    text = f"+ {count} near-duplicate{'' if count == 1 else 's'}"
    assert page.locator("#hits .card").first.locator(".duplicates").inner_text() == text


def test_examples_change_the_query(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    shown = [hit.item for hit in collection.search(collection.vectors([item.id]), 13)[0] if hit.item.id != item.id]
    page.locator("#hits .card").nth(2).get_by_label("More like result 3 as well").click()
    expect(page.locator("#examples button.like")).to_have_count(1)
    like = shown[2].id
    query = compose_query(collection.vectors([item.id, like]), np.zeros((0, 8)))
    expected = [result.hit for result in find(collection, query, Options(k=12, without=(item.id, like))).results]
    assert hits_shown(page) == as_shown(expected)
    page.locator("#hits .card").nth(1).get_by_label("Less like result 2 as well").click()
    expect(page.locator("#examples button.unlike")).to_have_count(1)
    unlike = expected[1].item.id
    query = compose_query(collection.vectors([item.id, like]), collection.vectors([unlike]))
    expected = [
        result.hit for result in find(collection, query, Options(k=12, without=(item.id, like, unlike))).results
    ]
    assert hits_shown(page) == as_shown(expected)
    page.go_back()
    expect(page.locator("#examples button")).to_have_count(1)
    page.locator("#examples button").click()
    expect(page.locator("#examples")).to_be_hidden()
    assert [label for label, _ in hits_shown(page)] == [one.label or one.file.name for one in shown[:12]]


def test_diversity(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    page.locator("#diversity").select_option("0.6")
    query = collection.vectors([item.id])[0]
    expected = [
        result.hit for result in find(collection, query, Options(k=12, without=(item.id,), diversity=0.6)).results
    ]
    assert hits_shown(page) == as_shown(expected)


def test_filters_over_metadata(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    page.locator("#filters summary").click()
    page.get_by_label("n at least").fill("3")
    page.get_by_label("n at most").fill("4")
    page.get_by_label("n at most").blur()
    expect(page.locator("#filter-count")).to_have_text("(1 in use)")
    query = collection.vectors([item.id])[0]
    expected = [r.hit for r in find(collection, query, Options(k=12, where="n>=3, n<=4", without=(item.id,))).results]
    assert hits_shown(page) == as_shown(expected)
    assert all(hit.item.metadata["n"] in (3, 4) for hit in expected)
    page.go_back()
    page.go_back()
    expect(page.locator("#filter-count")).to_have_text("")


def test_a_name_that_is_the_title_is_not_repeated(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    expect(page.locator("#query-detail")).to_have_text(item.file.name)
    wide = collection.get(["z-wide"])[0]
    assert wide is not None
    search_with(page, wide)
    expect(page.locator("#query-title")).to_have_text("wide.png")
    expect(page.locator("#query-detail")).to_have_text("")
