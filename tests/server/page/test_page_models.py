"""Two models on the page: one after the other, and side by side."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from page_helpers import expect, hits_shown, serving

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone
from lookalike.server import create_app


@pytest.fixture(scope="module")
def two(collection: index.Index, model: TrainedModel) -> Iterator[tuple[str, index.Index]]:
    import torch

    torch.manual_seed(4)
    backbone = create_backbone("resnet8-half", weights="none")
    embedder = Embedder(backbone, dim=6, pooling="gsop", input_spec=backbone.spec.resized(32))
    other = TrainedModel(embedder, "torch", source="runs/plain")
    with index.add_model(collection, other, engine="torch") as second:
        index.fill(second, other)
        with serving(create_app(collection, model, others={"plain": (second, other)})) as url:
            yield url, second


def ids_of(page: Any, grid: str) -> list[str]:
    found: list[str] = page.locator(f"{grid} img").evaluate_all("all => all.map(one => one.src.split('/').at(-2))")
    return found


def nearest(idx: index.Index, item_id: str) -> list[str]:
    hits = idx.search(idx.vectors([item_id]), 13)[0]
    return [hit.item.id for hit in hits if hit.item.id != item_id][:12]


def test_models_side_by_side(
    opening: Callable[..., Any], two: tuple[str, index.Index], collection: index.Index
) -> None:
    url, second = two
    page = opening(url)
    item = collection.items(where="label=class3")[5]
    page.goto(f"{url}#id={item.id}")
    hits_shown(page)
    assert ids_of(page, "#hits") == nearest(collection, item.id)
    chooser = page.get_by_label("Model", exact=True)
    assert chooser.locator("option").all_inner_texts() == ["looking", "plain", "looking beside plain"]
    chooser.select_option("plain")
    expect(page.locator("#weights-control")).to_be_hidden()  # second moments have no weights
    assert hits_shown(page)
    assert ids_of(page, "#hits") == nearest(second, item.id)
    chooser.select_option(label="looking beside plain")
    expect(page.locator("#second-status")).to_have_text("12 results")
    hits_shown(page)
    assert page.locator("#first-title").inner_text() == "looking"
    assert page.locator("#second-title").inner_text() == "plain"
    assert ids_of(page, "#hits") == nearest(collection, item.id)
    assert ids_of(page, "#second-hits") == nearest(second, item.id)
    left, right = (page.locator(name).bounding_box() for name in ("#hits", "#second-hits"))
    assert left["x"] + left["width"] <= right["x"]
    page.locator("#label").select_option(label="class3 (8)")  # both follow the filters
    expect(page.locator("#second-status")).to_have_text("7 results")
    assert len(hits_shown(page)) == 7
    page.locator("#second-hits .select").first.check()
    expect(page.locator("#basket-count")).to_have_text("1 picture selected")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    chooser.focus()
    page.keyboard.press("Home")
    expect(page.locator("#second")).to_be_hidden()
