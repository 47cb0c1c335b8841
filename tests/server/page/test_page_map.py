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


def drawn_points(page: Any) -> list[dict[str, Any]]:
    answer = page.evaluate("fetch('map').then(answer => answer.json())")
    columns = zip(answer["ids"], answer["names"], answer["label"], answer["x"], answer["y"], strict=True)
    return [
        {"id": item_id, "name": name, "label": answer["labels"][label], "x": x / 65535, "y": y / 65535}
        for item_id, name, label, x, y in columns
    ]


def opened_map(page: Any, count: int = 65) -> tuple[list[dict[str, Any]], np.ndarray, dict[str, float]]:
    """The points, where they are on the screen, and the frame of the map."""
    points = drawn_points(page)
    assert len(points) == count
    page.locator("#tab-map").click()
    expect(page.locator("#map-status")).to_have_text(f"{count:,} pictures")
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
    expect(page.locator("#map-tip p")).to_have_text(points[lonely]["label"] or points[lonely]["name"])
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


def test_a_map_that_takes_longer_than_a_request_is_asked_for_again(opening: Callable[..., Any]) -> None:
    """The server goes on with it: 100,000 pictures on a busy machine."""
    asked = []

    def answer(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            error = {"error": {"code": "timeout", "message": "it took longer than 30 seconds"}}
            route.fulfill(status=504, json=error, headers={"Retry-After": "0"})
        else:
            route.continue_()

    page = opening(allowed="504")
    page.route("**/map", answer)
    page.locator("#tab-map").click()
    expect(page.locator("#map-status")).to_have_text(re.compile(r"^\d+ pictures$"))
    assert len(asked) == 2


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


def answered(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """Changes the answer of GET /map for a page."""

    def before(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            change(content)
            route.fulfill(json=content)

        page.route("**/map", answer)

    return before


def many_labels(content: dict[str, Any]) -> None:
    """32 labels with two pictures, and one label with a single one."""
    content["labels"] = [*(f"often {number:02}" for number in range(32)), "rare"]
    content["label"] = [min(row // 2, 32) for row in range(65)]


MIDDLE = "all => all.map(one => [...one.getContext('2d').getImageData(12, 12, 1, 1).data].slice(0, 3))"
OUTLINE = """all => all.map(one => {
  const copy = new OffscreenCanvas(24, 24).getContext("2d", { willReadFrequently: true });
  copy.drawImage(one, 0, 0);
  const { data } = copy.getImageData(0, 0, 24, 24);
  return Array.from({ length: 576 }, (_, place) => data[4 * place + 3] > 127 ? 1 : 0).join("");
})"""


def test_map_legend_with_many_labels(opening: Callable[..., Any]) -> None:
    """Every label of the legend differs from all others by colour or shape, and points look as the legend says."""
    page = opening(before=answered(many_labels))
    points, pixels, box = opened_map(page)
    keys = page.locator("#map-legend li")
    assert keys.all_inner_texts() == [*(f"often {number:02}" for number in range(32)), "1 other label"]
    colours = [tuple(colour) for colour in page.locator("#map-legend canvas").evaluate_all(MIDDLE)]
    outlines = page.locator("#map-legend canvas").evaluate_all(OUTLINE)
    assert len(set(colours[:8])) == 8
    assert len(set(outlines[:8])) == 8
    assert len(set(zip(colours, outlines, strict=True))) == 33
    for one in range(32):  # labels of one colour have different shapes, by more than an edge
        for other in range(one):
            if colours[one] == colours[other]:
                differing = sum(a != b for a, b in zip(outlines[one], outlines[other], strict=True))
                assert differing > 20, (one, other)
    assert len(set(colours[-1])) == 1, "others are grey"
    page.evaluate(FRAMES)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    alone = [row for row in range(65) if apart[row].min() > 15]
    assert len(alone) > 5
    places = (pixels[alone] - [box["x"], box["y"]]).tolist()
    for row, drawn in zip(alone, page.locator("#map-canvas").evaluate(PIXELS, places), strict=True):
        number = 32 if points[row]["label"] == "rare" else int(points[row]["label"][-2:])
        assert np.abs(np.array(drawn[:3]) - colours[number]).max() <= 3


def test_legend_highlights(opening: Callable[..., Any]) -> None:
    """On hover and on focus the other labels are dimmed; a click keeps it so."""
    page = opening(before=answered(many_labels))
    points, pixels, box = opened_map(page)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    alone = [row for row in range(65) if apart[row].min() > 15]
    places = (pixels[alone] - [box["x"], box["y"]]).tolist()
    labels = [points[row]["label"] for row in alone]

    def bright() -> set[str]:
        page.evaluate(FRAMES)
        drawn = page.locator("#map-canvas").evaluate(PIXELS, places)
        return {label for label, pixel in zip(labels, drawn, strict=True) if pixel[3] > 200}

    everything = bright()
    assert everything == set(labels)
    key = page.locator("#map-legend .key", has_text=labels[0])
    key.hover()
    assert bright() == {labels[0]}
    page.mouse.move(box["x"] + 1, box["y"] - 40)
    assert bright() == everything
    key.focus()
    assert bright() == {labels[0]}
    page.keyboard.press("Enter")
    expect(key).to_have_attribute("aria-pressed", "true")
    page.locator("#zoom-in").focus()
    assert bright() == {labels[0]}
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    page.locator("#zoom-in").hover()
    page.locator("#zoom-in").focus()
    assert bright() == everything


def test_names_of_clusters(opening: Callable[..., Any]) -> None:
    def named(content: dict[str, Any]) -> None:
        for column in ("ids", "names", "label", "x", "y"):
            content[column] = content[column] * 2  # there are names from a hundred points on
        content["ids"] = [f"{item_id}{row}" for row, item_id in enumerate(content["ids"])]
        low, high = min(content["x"]) / 65535, max(content["x"]) / 65535
        place = {"x": (low + high) / 2, "y": (min(content["y"]) + max(content["y"])) / 2 / 65535}
        content["clusters"] = [
            {"label": "WWWWWW", **place, "pictures": 90, "share": 1.0},
            {"label": "hidden below it", **place, "pictures": 40, "share": 0.5},
        ]

    page = opening(before=answered(named))
    page.locator("#tab-map").click()
    expect(page.locator("#map-status")).to_have_text("130 pictures")
    listed = page.locator("#map-clusters li").all_text_contents()
    assert listed == ["WWWWWW, 90 pictures", "hidden below it, 40 pictures"]
    page.evaluate(FRAMES)
    ink = page.locator("#map-canvas").evaluate(
        """canvas => {
          const ratio = canvas.width / canvas.getBoundingClientRect().width;
          const [x, y] = [canvas.width / 2 - 30 * ratio, canvas.height / 2 - 6 * ratio];
          const { data } = canvas.getContext("2d").getImageData(x, y, 60 * ratio, 12 * ratio);
          const colour = getComputedStyle(canvas).color.match(/\\d+/g).map(Number);
          let same = 0;
          for (let place = 0; place < data.length; place += 4)
            if ([0, 1, 2].every((c) => Math.abs(data[place + c] - colour[c]) < 8) && data[place + 3] > 250) same += 1;
          return same / (60 * 12 * ratio * ratio);
        }"""
    )
    assert ink > 0.05


def brute_force(points: list[dict[str, Any]], corners: list[tuple[float, float]]) -> set[str]:
    """The points in a polygon, by the sum of the angles to its corners."""
    inside = set()
    for point in points:
        total = 0.0
        for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
            first = np.arctan2(ay - point["y"], ax - point["x"])
            second = np.arctan2(by - point["y"], bx - point["x"])
            total += (second - first + np.pi) % (2 * np.pi) - np.pi
        if abs(total) > np.pi:
            inside.add(point["id"])
    return inside


def in_map(pixels: np.ndarray, points: list[dict[str, Any]], corners: list[list[float]]) -> list[tuple[float, float]]:
    """Coordinates on the map of pixels on the screen."""
    places = np.array([[point["x"], point["y"]] for point in points])
    scale = np.ptp(pixels[:, 0]) / np.ptp(places[:, 0])
    return [tuple((np.array(corner) - pixels[0]) / scale + places[0]) for corner in corners]


def test_lasso(page: Any, collection: index.Index) -> None:
    """It selects what a plain test finds, for the basket and as a filter of searches and of the collection."""
    points, pixels, _ = opened_map(page)
    middle = np.median(pixels, axis=0)
    corners = [middle + each for each in ([-150, -90], [120, -110], [60, 10], [140, 120], [-130, 100])]
    expected = brute_force(points, in_map(pixels, points, corners))
    assert 5 < len(expected) < 60
    page.locator("#lasso").click()
    expect(page.locator("#lasso")).to_have_attribute("aria-pressed", "true")
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in [*corners[1:], corners[0]]:
        page.mouse.move(*corner)
    page.mouse.up()
    expect(page.locator("#map-selected")).to_have_text(f"{len(expected)} pictures in the area")
    expect(page.locator("#lasso")).to_have_attribute("aria-pressed", "false")
    page.locator("#map-to-basket").click()
    expect(page.locator("#basket-count")).to_have_text(f"{len(expected)} pictures selected")
    stored = page.evaluate("JSON.parse(sessionStorage.getItem('lookalike-basket'))")
    assert {item["id"] for item in stored} == expected
    page.locator("#map-filter").click()
    expect(page.locator("#area-text")).to_have_text(f"Only the {len(expected)} pictures selected on the map.")
    expect(page.locator("#items .card:not(.waiting)")).to_have_count(min(48, len(expected)))
    item = striped(collection)
    page.locator("#k").fill("200")
    page.locator("#items .picture").first.click()
    assert len(hits_shown(page)) == len(expected) - 1
    found = page.locator("#hits img").evaluate_all("all => all.map(one => one.src.split('/').at(-2))")
    assert set(found) < expected
    page.locator("#area-clear").click()
    expect(page.locator("#area")).to_be_hidden()
    assert len(hits_shown(page)) == 64
    assert item


def test_lasso_by_keyboard(page: Any) -> None:
    points, pixels, box = opened_map(page)
    page.locator("#lasso").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#map-canvas")).to_be_focused()
    at = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
    corners = []
    for keys, step in (
        (["Shift+ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowUp", "Shift+ArrowUp"], [-128, -128]),
        (["Shift+ArrowRight"] * 4, [256, 0]),
        (["Shift+ArrowDown"] * 3 + ["ArrowDown"], [0, 208]),
    ):
        for key in keys:
            page.keyboard.press(key)
        at = at + step
        corners.append(at)
        page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expected = brute_force(points, in_map(pixels, points, corners))
    assert expected
    noun = "picture" if len(expected) == 1 else "pictures"
    expect(page.locator("#map-selected")).to_have_text(f"{len(expected)} {noun} in the area")
    page.locator("#map-deselect").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#map-selection")).to_be_hidden()
    page.locator("#lasso").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.locator("#lasso")).to_have_attribute("aria-pressed", "false")


def test_map_controls_on_a_phone(opening: Callable[..., Any]) -> None:
    page = opening(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    _, _, box = opened_map(page)
    page.locator("#lasso").tap()
    cdp = page.context.new_cdp_session(page)
    path = [(box["x"] + x, box["y"] + y) for x, y in ((20, 20), (350, 20), (350, 280), (20, 280), (20, 22))]
    page.locator("#map-canvas").scroll_into_view_if_needed()
    top = page.locator("#map-canvas").bounding_box()["y"] - box["y"]
    for kind, (x, y) in zip(["touchStart", *["touchMove"] * 4], path, strict=True):
        cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y + top}]})
    cdp.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page.locator("#map-selection")).to_be_visible()
    assert page.locator("#map-selected").inner_text() != "0 pictures in the area"
    for name in ("#map-to-basket", "#map-filter", "#map-deselect"):
        button = page.locator(name).bounding_box()
        assert button["x"] >= 0
        assert button["x"] + button["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


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
    nearest = page.locator("#hits img").evaluate_all("all => all.slice(0, 5).map(one => one.src.split('/').at(-2))")
    page.locator("#tab-map").click()
    expect(page.locator("#map-legend li:has(.ring)")).to_have_text(["the query", "its results"])
    rows = [row for row, point in enumerate(points) if point["id"] in nearest]
    x, y = (np.median(pixels[rows], axis=0) - [box["x"], box["y"]]).tolist()
    assert hairs() == 4


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
    points = drawn_points(page)

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
