"""Pooling weights over pictures, and regions to search with, held against what the model says itself."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from page_helpers import (
    expect,
    expected,
    hits_shown,
    search_with,
    searched,
    striped,
)
from PIL import Image

from lookalike import index
from lookalike.inference.model import TrainedModel

OPACITIES = """(canvas, [rows, columns]) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const [sums, counts] = [Array(rows * columns).fill(0), Array(rows * columns).fill(0)];
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const field = Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width);
    sums[field] += data[4 * (y * width + x) + 3];
    counts[field] += 1;
  }
  return sums.map((sum, field) => sum / counts[field]);
}"""


def opacities(page: Any, canvas: str, rows: int, columns: int) -> np.ndarray:
    """Of a canvas, the means over rows x columns fields."""
    return np.array(page.locator(canvas).evaluate(OPACITIES, [rows, columns])).reshape(rows, columns)


OPACITY = ((0, 0.35, 0.7, 1), (0.82, 0.62, 0.26, 0.14))  # fraction of the largest weight -> opacity


def test_weights_as_a_heat_map(page: Any, collection: index.Index, model: TrainedModel) -> None:
    item = striped(collection)
    search_with(page, item)
    assert page.locator(".heatmap:visible").count() == 0
    page.locator("#weights").check()
    expect(page.locator("#query-weights")).to_be_visible()
    expect(page.locator("#legend")).to_be_visible()
    expect(page.locator("#legend p").first).to_have_text(re.compile(r"no weight\s+the largest"))
    expect(page.locator("#legend")).to_contain_text("does not see an evenly dark border")
    rows, columns = model.explain(item.path).grid.shape
    expect(page.locator("#legend-grid")).to_contain_text(f"{rows} \u00d7 {columns} cells")
    expect(page.locator("#hits .heatmap").nth(3)).to_be_visible()
    third = collection.search(collection.vectors([item.id]), 5)[0][4].item
    for shown, canvas in ((item, "#query-weights"), (third, "#hits li:nth-child(4) .heatmap")):
        weights = model.explain(shown.path).weights  # of 32 x 32 pixels
        assert weights.max() > 2 * weights.min()
        wanted = 255 * np.interp(weights / weights.max(), *OPACITY)
        opacity = opacities(page, canvas, 8, 8)
        assert np.abs(opacity - wanted.reshape(8, 4, 8, 4).mean((1, 3))).max() < 16
        assert np.ptp(opacity) > 40
    page.locator("#hits .picture").first.click()
    expect(page.locator("#viewer-weights")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-facts")).to_contain_text("2 of 12")
    page.keyboard.press("Escape")
    page.locator("#weights").uncheck()
    assert page.locator(".heatmap:visible").count() == 0


def test_a_model_without_weights_has_no_switch(opening: Callable[..., Any]) -> None:
    def without(page: Any) -> None:
        def answer(route: Any) -> None:
            card = route.fetch().json()
            route.fulfill(json={**card, "has_weights": False, "figures": None})

        page.route("**/model", answer)

    page = opening(before=without)
    expect(page.locator("#weights-control")).to_be_hidden()
    page.locator("#open-card").click()
    expect(page.locator("#card-note")).to_have_text("No metrics are stored with this model.")


def test_a_region_by_dragging(page: Any, collection: index.Index, model: TrainedModel) -> None:
    (wide,) = [item for item in collection.items() if item.path.endswith("wide.png")]
    search_with(page, wide)
    box = page.locator("#query-picture").bounding_box()
    assert box["width"] == pytest.approx(2 * box["height"], rel=0.02)

    def point(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def drag(start: tuple[float, float], end: tuple[float, float]) -> None:
        page.mouse.move(*point(*start))
        page.mouse.down()
        page.mouse.move(*point(*end), steps=3)
        page.mouse.up()

    fields = searched(page, lambda: drag((0.25, 0.5), (0.75, 1.0)))
    region = [float(part) for part in fields["crop"].split(",")]
    assert region == pytest.approx([0.25, 0.5, 0.5, 0.5], abs=0.01)
    assert fields["id"] == wide.id
    left, top, width, height = region
    sides = np.array([left * 96, top * 48, (left + width) * 96, (top + height) * 48]).round().astype(int)
    with Image.open(wide.path) as picture:
        part = picture.crop(tuple(sides.tolist()))
    expect(page.locator("#hits .distance").first).not_to_be_empty()
    assert hits_shown(page) == expected(collection, model.embed(part)[0], without=wide.id)
    # inside it moves, at a corner it is sized
    moved = searched(page, lambda: drag((0.5, 0.75), (0.3, 0.55)))["crop"]
    assert [float(part) for part in moved.split(",")] == pytest.approx([0.05, 0.3, 0.5, 0.5], abs=0.01)
    sized = searched(page, lambda: drag((0.05, 0.3), (0.15, 0.1)))["crop"]
    assert [float(part) for part in sized.split(",")] == pytest.approx([0.15, 0.1, 0.4, 0.7], abs=0.015)
    # a slip of the hand is no region
    drag((0.9, 0.9), (0.91, 0.91))
    expect(page.locator("#region")).to_have_attribute("aria-label", re.compile(r"40 by 70 per cent"))
    assert "crop" not in searched(page, lambda: page.locator("#whole").click())
    expect(page.locator("#region")).to_be_hidden()


def test_a_region_by_keyboard(page: Any, collection: index.Index) -> None:
    search_with(page, striped(collection))
    page.locator("#weights").check()
    page.locator("#crop").press("Enter")
    expect(page.locator("#region")).to_be_focused()
    for key in ("ArrowRight", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#search-region")).to_be_visible()
    region = "0.2200,0.1800,0.6400,0.5800"
    with page.expect_request(
        lambda asked: asked.url.endswith("/explain") and region.encode() in asked.post_data_buffer
    ):
        fields = searched(page, lambda: page.keyboard.press("Enter"))
    assert fields["crop"] == region
    expect(page.locator("#search-region")).to_be_hidden()
    expect(page.locator("#query-weights")).to_be_visible()
    assert opacities(page, "#query-weights", 8, 8)[7].min() > 190  # outside of the region there is no weight
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#region")).to_have_attribute("aria-label", re.compile(" 0 from the left"))
    assert "crop" not in searched(page, lambda: page.keyboard.press("Escape"))
    expect(page.locator("#crop")).to_be_focused()
