"""The map of the collection on the page."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from page_helpers import (
    expect,
    hits_shown,
    search_with,
    searched,
    striped,
    upload_of,
)

from lookalike import index


def opened_map(page: Any) -> tuple[list[dict[str, Any]], np.ndarray, dict[str, float]]:
    """The points, where they are on the screen, and the frame of the map."""
    points = page.evaluate("fetch('map').then(answer => answer.json())")["points"]
    assert len(points) == 65
    page.locator("#tab-map").click()
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    box = page.locator("#map-canvas").bounding_box()
    places = np.array([[point["x"], point["y"]] for point in points])
    low, high = places.min(0), places.max(0)
    size = np.array([box["width"], box["height"]])
    scale = min((size - 36) / (high - low))
    return points, (places - (low + high) / 2) * scale + size / 2 + np.array([box["x"], box["y"]]), box


def test_the_map(page: Any, collection: index.Index) -> None:
    points, pixels, box = opened_map(page)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    lonely = int(apart.min(1).argmax())
    where = (pixels[lonely, 0], pixels[lonely, 1])
    page.mouse.move(where[0] + 3, where[1] - 3)
    expect(page.locator("#map-tip")).to_be_visible()
    expect(page.locator("#map-tip p")).to_have_text(points[lonely]["label"] or "no label")
    assert points[lonely]["id"] in page.locator("#map-tip img").get_attribute("src")
    assert page.locator("#map-tip img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.mouse.move(box["x"] + 2, box["y"] - 30)
    expect(page.locator("#map-tip")).to_be_hidden()
    assert searched(page, lambda: page.mouse.click(*where))["id"] == points[lonely]["id"]
    assert hits_shown(page)
    from_map = page.locator("#query figcaption").inner_text()
    (item,) = collection.get([points[lonely]["id"]])
    assert item is not None
    expect(page.locator("#query-detail")).to_have_text(item.file.name)
    page.locator("#label").select_option(label=f"{item.label or 'no label'} ({collection.labels()[item.label]})")
    page.locator("#tab-collection").click()
    page.get_by_label(f"Search with {item.label or 'no label'}, {item.file.name}", exact=True).click()
    assert hits_shown(page)
    assert page.locator("#query figcaption").inner_text() == from_map


def test_the_map_zoomed_and_dragged(page: Any) -> None:
    points, pixels, box = opened_map(page)
    middle = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
    chosen = int(np.linalg.norm(pixels - middle, axis=1).argmin())
    x, y = pixels[chosen].tolist()
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -280)  # e^1.4 = 4 times
    page.keyboard.up("Control")
    expect(page.locator("#map-canvas")).to_have_class(re.compile("zoomed"))

    def pointed(at: tuple[float, float]) -> str:
        page.mouse.move(box["x"] + 1, box["y"] - 40)
        expect(page.locator("#map-tip")).to_be_hidden()
        page.mouse.move(*at)
        expect(page.locator("#map-tip")).to_be_visible()
        return str(page.locator("#map-tip img").get_attribute("src").split("/")[1])

    assert pointed((x, y)) == points[chosen]["id"]  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(x + 25, y - 20, steps=3)
    page.mouse.move(x + 50, y - 40, steps=3)
    page.mouse.up()
    expect(page.locator("#map")).to_be_visible()  # to drag is not to search
    assert pointed((x + 50, y - 40)) == points[chosen]["id"]
    page.locator("#zoom-reset").click()
    expect(page.locator("#map-canvas")).not_to_have_class(re.compile("zoomed"))
    assert pointed((x, y)) == points[chosen]["id"]


PIXELS = """(canvas, places) => {
  const dense = canvas.width / canvas.getBoundingClientRect().width;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return places.map(([x, y]) => [...copy.getImageData(Math.round(x * dense), Math.round(y * dense), 1, 1).data]);
}"""


FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_map_legend_with_many_labels(opening: Callable[..., Any]) -> None:
    """Those that have most pictures are named; every point has the colour that the key gives it."""
    names: dict[str, str] = {}

    def many(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            for place, point in enumerate(content["points"]):  # 12 labels with 3 pictures, 15 with one or two
                point["label"] = f"often {place % 12:02}" if place < 36 else f"rare {place % 15:02}"
                names[point["id"]] = point["label"]
            route.fulfill(json=content)

        page.route("**/map", answer)

    page = opening(before=many)
    points, pixels, box = opened_map(page)
    assert len(set(names.values())) == 27
    keys = page.locator("#map-legend li")
    assert keys.all_inner_texts() == [*(f"often {place:02}" for place in range(12)), "15 other labels"]
    middle = "all => all.map(one => [...one.getContext('2d').getImageData(12, 12, 1, 1).data].slice(0, 3))"
    colours = [tuple(colour) for colour in page.locator("#map-legend canvas").evaluate_all(middle)]
    assert len(set(colours)) == 13
    assert len(set(colours[-1])) == 1, "others are grey"
    page.evaluate(FRAMES)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    alone = [place for place in range(65) if apart[place].min() > 12]
    seen = set()
    places = (pixels[alone] - [box["x"], box["y"]]).tolist()
    for place, drawn in zip(alone, page.locator("#map-canvas").evaluate(PIXELS, places), strict=True):
        label = names[points[place]["id"]]
        wanted = colours[-1] if label.startswith("rare") else colours[int(label[-2:])]
        assert np.abs(np.array(drawn[:3]) - wanted).max() <= 3
        seen.add(label.split()[0])
    assert seen == {"often", "rare"}


def test_the_map_marks_the_query_and_its_results(page: Any, collection: index.Index, upload: bytes) -> None:
    item = striped(collection)
    points, pixels, box = opened_map(page)
    place = [point["id"] for point in points].index(item.id)
    x, y = (pixels[place] - [box["x"], box["y"]]).tolist()
    rings = page.locator("#map-legend .ring")
    expect(rings).to_have_count(0)

    def hairs() -> int:
        """Ink on the four hairs around the point of the item, outside of any ring."""
        page.evaluate(FRAMES)
        far = 4.5 + 3.5 + 3.5
        around = [[x + far, y], [x - far, y], [x, y + far], [x, y - far]]
        return sum(pixel[3] > 100 for pixel in page.locator("#map-canvas").evaluate(PIXELS, around))

    before = hairs()
    assert before < 4
    search_with(page, item)
    page.locator("#tab-map").click()
    assert page.locator("#map-legend li:has(.ring)").all_inner_texts() == ["the query", "its results"]
    assert hairs() == 4
    page.locator("#file").set_input_files(upload_of(upload))  # which is not on the map
    assert len(hits_shown(page)) == 12
    page.locator("#tab-map").click()
    expect(page.locator("#map-legend li:has(.ring)")).to_have_text(["its results"])
    assert hairs() == before


def test_map_help_for_pointer_and_touch(opening: Callable[..., Any], page: Any) -> None:
    touch = {"has_touch": True, "is_mobile": True}
    for each, fingers in (
        (page, False),
        (opening(viewport={"width": 375, "height": 740}), True),
        (opening(viewport={"width": 1024, "height": 740}, **touch), True),
    ):
        each.locator("#tab-map").click()
        said = each.locator("#map-help").inner_text()
        assert ("Tap a point" in said) == fingers
        assert any(word in said for word in ("Hover", "arrow keys", "Page Down")) != fingers


def test_a_long_label_breaks_where_its_words_end(opening: Callable[..., Any]) -> None:
    name = "Red_winged_Blackbird"

    def renamed(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            content["items"][0]["label"] = name
            route.fulfill(json=content)

        page.route("**/items?*", answer)

    page = opening(before=renamed, viewport={"width": 375, "height": 740})
    label = page.locator("#items .label").first
    expect(label).to_have_text(name)
    lines = label.evaluate(
        """one => {
          const lines = new Map();
          for (const node of one.childNodes) for (let place = 0; place < (node.data ?? "").length; place += 1) {
            const range = document.createRange();
            range.setStart(node, place);
            range.setEnd(node, place + 1);
            const { top } = range.getBoundingClientRect();
            lines.set(top, (lines.get(top) ?? "") + node.data[place]);
          }
          return [...lines.values()];
        }"""
    )
    assert lines == ["Red_winged_", "Blackbird"]
    expect(label).to_have_attribute("title", name)


def test_the_maps_legend_follows_the_scheme(opening: Callable[..., Any]) -> None:
    middle = "one => [...one.getContext('2d').getImageData(12, 12, 1, 1).data]"
    page, fresh = opening(color_scheme="light"), opening(color_scheme="dark")
    for each in (page, fresh):
        each.locator("#tab-map").click()
    light, dark = (each.locator("#map-legend canvas").first.evaluate(middle) for each in (page, fresh))
    assert light != dark
    page.emulate_media(color_scheme="dark")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator("#map-legend canvas").first.evaluate(middle) == dark


def test_the_map_by_keyboard(page: Any) -> None:
    page.locator("#tab-collection").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    page.keyboard.press("Tab")
    expect(page.locator("#map-canvas")).to_be_focused()
    expect(page.locator("#map-tip")).to_be_visible()
    points = page.evaluate("fetch('map').then(answer => answer.json())")["points"]

    def pointed() -> dict[str, Any]:
        item_id = page.locator("#map-tip img").get_attribute("src").split("/")[1]
        return next(point for point in points if point["id"] == item_id)

    for key, axis, sign in (
        ("ArrowRight", "x", 1),
        ("ArrowDown", "y", 1),
        ("ArrowLeft", "x", -1),
        ("ArrowUp", "y", -1),
    ):
        before = pointed()
        page.keyboard.press(key)
        assert sign * (pointed()[axis] - before[axis]) > 0
    for key in ("+", "+", "ArrowRight", "0"):
        page.keyboard.press(key)
    expect(page.locator("#map-status")).to_contain_text("of 65")
    page.locator("#label").select_option(label="class5 (8)")
    page.locator("#map-canvas").focus()
    seen = []
    for _ in range(9):
        page.keyboard.press("PageDown")
        seen.append(pointed())
    assert {point["label"] for point in seen} == {"class5"}
    assert len({point["id"] for point in seen}) == 8
    assert searched(page, lambda: page.keyboard.press("Enter"))["id"] == seen[-1]["id"]
