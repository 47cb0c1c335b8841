"""The dialog that improves the model: button, progress, figures, the new ranking, and the way back."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_helpers import expect, search_with
from server_helpers import in_process, mark_what_it_knows

from lookalike import index


@pytest.fixture
def marked(collection: index.Index, tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "marked.idx"
    shutil.copytree(collection.path, path)
    mark_what_it_knows(path)
    with in_process(path, environment={"LOOKALIKE_CACHE": str(tmp_path / "cache")}) as (url, _):
        yield url


def test_improve_and_return(opening: Callable[..., Any], marked: str, collection: index.Index, tmp_path: Path) -> None:
    page, other = opening(marked), opening(marked)
    for one in (page, other):
        search_with(one, collection.items()[3]._replace(label=""))
    distances = page.locator("#hits .card").all_inner_texts()
    other.locator("#tab-teach").click()
    page.get_by_role("button", name="Improve").click()
    page.locator("#improve-start").click()
    expect(page.locator("#improve-stop")).to_be_visible()
    expect(page.locator("#improve-status")).to_contain_text("installed the new model", timeout=600_000)
    rows = page.locator("#improve-figures tbody tr")
    expect(rows.first).to_contain_text("AUROC")
    expect(rows.first).to_contain_text("%")
    outcome = page.request.get(f"{marked}/improve")
    assert outcome.json()["report"]["held_out_marks"] > 0
    assert str(tmp_path) not in outcome.text(), "folders are private"
    page.keyboard.press("Escape")
    expect(page.locator("#hits .card").first).to_be_visible()
    improved = page.locator("#hits .card").all_inner_texts()
    assert improved != distances
    with other.expect_response("**/search"):
        other.evaluate("dispatchEvent(new Event('focus'))")  # somebody else comes back to the page
    expect(other.locator("#results")).to_have_attribute("aria-busy", "false")
    expect(other.locator("#teach")).to_be_visible()
    other.locator("#tab-results").click()
    assert other.locator("#hits .card").all_inner_texts() == improved
    page.get_by_role("button", name="Improve").click()
    page.locator("#improve-rollback").click()
    expect(page.locator("#improve-status")).to_contain_text("returned to the model before", timeout=600_000)
    page.keyboard.press("Escape")
    expect(page.locator("#hits .card").first).to_be_visible()
    assert page.locator("#hits .card").all_inner_texts() == distances
