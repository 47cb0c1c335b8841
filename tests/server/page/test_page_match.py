"""Query and result side by side, with the regions that match."""

import re
from typing import Any

import pytest
from page_helpers import expect, search_with, striped

from lookalike import index
from lookalike.inference.model import TrainedModel


def test_both_pictures_and_their_regions(page: Any, collection: index.Index, model: TrainedModel) -> None:
    item = striped(collection)
    search_with(page, item)
    hit = next(hit for hit in collection.search(collection.vectors([item.id]), 3)[0] if hit.item.id != item.id).item
    page.locator("#hits .picture").first.click()
    expect(page.locator("#match-picture")).to_be_visible()
    expect(page.locator("#viewer-picture")).to_be_visible()
    expect(page.locator("#match-a rect")).to_have_count(16)
    match = model.match(item.file, hit.file)
    expect(page.locator("#match-summary")).to_contain_text(f"Similarity {match.cosine:.3f}")
    inside = round(100 * min(1, max(0, match.inside_share)))
    expect(page.locator("#match-summary")).to_contain_text(f"{inside} % lies on the object")
    shares = [f"Region {i + 1}: {100 * region.share:.0f} %" for i, region in enumerate(match.regions)]
    assert page.locator("#match-regions button").all_inner_texts() == shares
    colour = "element => element.style.getPropertyValue('--region')"
    for side, cells in (("a", match.regions[0].cells_a), ("b", match.regions[0].cells_b)):
        assert page.locator(f"#match-{side} rect").nth(cells[0]).evaluate(colour) == "#e69f00"


def test_a_place_lights_its_partners(page: Any, collection: index.Index, model: TrainedModel) -> None:
    item = striped(collection)
    search_with(page, item)
    hit = next(hit for hit in collection.search(collection.vectors([item.id]), 3)[0] if hit.item.id != item.id).item
    page.locator("#hits .picture").first.click()
    expect(page.locator("#match-a rect")).to_have_count(16)
    matrix = model.match(item.file, hit.file).matrix
    cell = int(matrix.sum(1).argmax())
    page.locator("#match-a rect").nth(cell).hover()
    expect(page.locator("#match-b")).to_have_class(re.compile("lit"))
    expect(page.locator("#match-a rect").nth(cell)).to_have_class(re.compile("chosen"))
    partner = "element => Number(element.style.getPropertyValue('--partner'))"
    strengths = [rect.evaluate(partner) for rect in page.locator("#match-b rect").all()]
    expected = (0.75 * matrix[cell] / matrix[cell].max()).clip(0)
    assert strengths == pytest.approx(expected, abs=2e-3)
    column = int(matrix.sum(0).argmax())
    page.locator("#match-b rect").nth(column).hover()
    strengths = [rect.evaluate(partner) for rect in page.locator("#match-a rect").all()]
    assert strengths == pytest.approx((0.75 * matrix[:, column] / matrix[:, column].max()).clip(0), abs=2e-3)
    page.locator("#viewer-title").hover()
    expect(page.locator("#match-b")).not_to_have_class(re.compile("lit"))
    page.locator("#match-regions button").first.focus()
    expect(page.locator("#match-b")).to_have_class(re.compile("lit"))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-facts")).to_contain_text("2 of 12")


def test_side_by_side_on_a_phone(opening: Any, collection: index.Index) -> None:
    page = opening(viewport={"width": 390, "height": 844})
    search_with(page, striped(collection))
    page.locator("#hits .picture").first.click()
    expect(page.locator("#match-regions button").first).to_be_visible()
    widths = page.evaluate(
        "[document.getElementById('viewer').scrollWidth, document.getElementById('viewer').clientWidth]"
    )
    assert widths[0] <= widths[1]
