"""The page for everybody: by keyboard, on a phone, in dark and light, without motion."""

from collections.abc import Callable
from typing import Any

import pytest
from page_helpers import NASTY, expect, hits_shown, search_with, searched, striped

from lookalike import index

FOCUS = """() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return [document.activeElement.id || document.activeElement.className, outlineStyle, parseFloat(outlineWidth)];
}"""


def test_everything_by_keyboard(page: Any, collection: index.Index) -> None:
    """From the top of the page to a search, along its results and to the next search; one always sees where one is."""
    order = []

    def press(key: str) -> str:
        page.keyboard.press(key)
        name, style, width = page.evaluate(FOCUS)
        assert style != "none", f"no focus to be seen on {name}"
        assert width >= 2
        order.append(name)
        return str(name)

    while press("Tab") != "picture":
        assert len(order) < 20
    controls = ["label", "k", "rerank", "more-filters", "diversity", "group", "weights"]
    assert order == ["skip", "open-improve", "open-card", "choose", *controls, "tab-collection", "picture"]

    def place() -> int:
        return int(
            page.evaluate(
                "[...document.activeElement.closest('ul').children].indexOf(document.activeElement.closest('li'))"
            )
        )

    columns = page.locator("#items .card").evaluate_all(
        "all => all.filter(one => one.offsetTop === all[0].offsetTop).length"
    )
    assert columns > 2
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("ArrowUp", 0),
        ("End", 47),
        ("ArrowDown", 47),
        ("Home", 0),
    ):
        press(key)
        assert place() == at
    press("ArrowRight")
    page.keyboard.press("Enter")
    assert hits_shown(page)
    expect(page.locator("#hits .picture").first).to_be_focused()  # not lost with the picture that was chosen
    press("ArrowRight")
    assert place() == 1
    assert press("Tab") == "more"
    following = collection.search(collection.vectors([collection.items()[1].id]), 3)[0][2].item
    assert searched(page, lambda: page.keyboard.press("Enter"))["id"] == following.id
    assert len(hits_shown(page)) == 12
    expect(page.locator("#hits .picture").first).to_be_focused()


def test_every_control_has_a_name(page: Any, collection: index.Index) -> None:
    search_with(page, striped(collection))
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex], [role=application], dialog, ul")]
          .filter(one => !(one.textContent.trim() && one.tagName === "BUTTON") && !one.getAttribute("aria-label")
            && !one.getAttribute("aria-labelledby") && !one.labels?.length && one.checkVisibility())
          .map(one => one.outerHTML)"""
    )
    assert nameless == []


def test_no_view_is_wider_than_a_phone(opening: Callable[..., Any]) -> None:
    width = 320
    page = opening(viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)

    def overhang() -> int:
        return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    page.locator("#label").select_option(label=f"{NASTY} (1)")
    expect(page.locator("#items .card:not(.waiting)")).to_have_count(1)
    assert overhang() == 0
    page.locator("#items .picture").tap()
    expect(page.locator("#notice")).to_be_visible()
    assert overhang() == 0
    page.locator("#notice-action").tap()
    page.locator("#weights").check()
    assert len(hits_shown(page)) == 12
    assert overhang() == 0
    page.locator("#crop").tap()
    assert overhang() == 0
    page.locator("#hits .picture").first.tap()
    box = page.locator("#viewer").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    tops = page.evaluate("['previous', 'next'].map(name => document.getElementById(`viewer-${name}`).offsetTop)")
    assert tops[0] == tops[1], "side by side"
    page.keyboard.press("Escape")
    page.locator("#tab-map").tap()
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    assert overhang() == 0


def test_taps_on_a_phone_scroll_to_the_result(opening: Callable[..., Any]) -> None:
    page = opening(viewport={"width": 375, "height": 812}, has_touch=True, is_mobile=True)
    page.locator("#tab-map").tap()
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    expect(page.locator("#map-canvas")).to_be_in_viewport(ratio=0.9)


CONTRAST = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
    const [red, green, blue] = parts.map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  return ["#summary", "#open-card", "#choose", "#tab-results", "#tab-collection", "#status", "#query-detail", ".label",
    ".distance", ".more", "#label", "#rerank", "#rerank-help", "#notice-text", "#map-help"].map(name => {
      const one = document.querySelector(name);
      const pair = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
      return [name, (pair[0] + 0.05) / (pair[1] + 0.05)];
    });
}"""


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(246, 246, 244)"), ("dark", "rgb(19, 20, 23)")])
def test_light_and_dark(scheme: str, paper: str, opening: Callable[..., Any], collection: index.Index) -> None:
    page = opening(color_scheme=scheme)
    search_with(page, striped(collection))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    for name, contrast in page.evaluate(CONTRAST):
        assert contrast >= 4.5, name


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_reduced_motion(motion: str, opening: Callable[..., Any]) -> None:
    page = opening(reduced_motion=motion)
    held: list[Any] = []
    page.route("**/search", lambda route: held.append(route))
    page.locator("#items .picture").first.click()
    expect(page.locator("#progress")).to_be_visible()
    moving = page.evaluate("document.getAnimations().filter(one => one instanceof CSSAnimation).length")
    assert (moving == 0) == (motion == "reduce")
    held[0].continue_()
    assert hits_shown(page)
