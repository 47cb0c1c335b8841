"""What the page says when the server wants a key, refuses, is busy or is gone."""

import re
from collections.abc import Callable
from typing import Any

from page_helpers import KEPT, READ, expect, expected, hits_shown, serving, upload_of
from server_helpers import noise

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app


def test_a_server_with_a_key(
    opening: Callable[..., Any], collection: index.Index, model: TrainedModel, upload: bytes
) -> None:
    with serving(create_app(collection, model, keys=Keys(read=(READ,)))) as url:
        page = opening(url, allowed="401", ready=False)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#key-value")).to_be_focused()
        page.keyboard.type("another key altogether")
        page.keyboard.press("Enter")
        expect(page.locator("#key-text")).to_contain_text("not accepted")
        page.locator("#key-value").fill(READ)
        page.keyboard.press("Enter")
        expect(page.locator("#items .card:not(.waiting)").first).to_be_visible()
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator("#items img").first).to_have_attribute("src", re.compile("^blob:"))
        assert page.locator("#items img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 32
        page.locator("#file").set_input_files(upload_of(upload))
        assert hits_shown(page) == expected(collection, model.embed(noise(40, 30))[0])
        page.locator("#weights").check()
        expect(page.locator("#hits .heatmap").first).to_be_visible()
        assert READ in page.evaluate(KEPT)
        assert page.evaluate("localStorage.length") == 0
        assert not any("key" in each for each in asked)
        page.reload()
        expect(page.locator("#items .card:not(.waiting)").first).to_be_visible()
        page.context.close()


def test_key_dialog_closed_without_a_key(
    opening: Callable[..., Any], collection: index.Index, model: TrainedModel
) -> None:
    with serving(create_app(collection, model, keys=Keys(read=(READ,)))) as url:
        page = opening(url, allowed="401", ready=False)
        page.locator("#key [data-close]").click()
        expect(page.locator("#notice")).to_be_visible()
        expect(page.locator("#notice-text")).to_contain_text("key")
        page.context.close()


def test_server_errors_are_shown(opening: Callable[..., Any], upload: bytes) -> None:
    page = opening(allowed="415")
    with page.expect_response("**/search") as answer:
        page.locator("#file").set_input_files(upload_of(b"not a picture at all", "broken.jpg", "image/jpeg"))
    assert answer.value.status == 415
    message = answer.value.json()["error"]["message"]
    expect(page.locator("#notice-text")).to_have_text(message)
    expect(page.locator("#status")).to_have_text("The search failed")
    # it would fail again, and there is nothing to be seen of it
    expect(page.locator("#notice-action")).to_have_text("Choose another picture")
    expect(page.locator("#stage")).to_be_hidden()
    expect(page.locator("#crop")).to_be_hidden()
    expect(page.locator("#query-unseen")).to_be_visible()
    with page.expect_file_chooser() as chooser:
        page.locator("#notice-action").click()
    chooser.value.set_files([])
    page.locator("#file").set_input_files(upload_of(b"words", "letter.txt", "text/plain"))
    expect(page.locator("#notice-text")).to_have_text("letter.txt is not a picture.")
    page.locator("#file").set_input_files(upload_of(upload))
    assert len(hits_shown(page)) == 12
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#query-unseen")).to_be_hidden()
    expect(page.locator("#stage")).to_be_visible()


def test_refused_pictures_cannot_be_cropped(opening: Callable[..., Any], upload: bytes) -> None:
    page = opening(allowed="413")
    page.route("**/search", lambda route: route.fulfill(status=413, json={"error": {"message": "too many pixels"}}))
    page.locator("#file").set_input_files(upload_of(upload))
    expect(page.locator("#notice-text")).to_have_text("too many pixels")
    expect(page.locator("#stage")).to_be_visible()
    expect(page.locator("#crop")).to_be_disabled()
    box = page.locator("#query-picture").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 120, steps=3)
    page.mouse.up()
    expect(page.locator("#region")).to_be_hidden()
    page.unroute("**/search")
    page.locator("#file").set_input_files(upload_of(upload, "again.png"))
    assert len(hits_shown(page)) == 12
    expect(page.locator("#crop")).to_be_enabled()


def test_retries_while_busy_and_on_demand(opening: Callable[..., Any]) -> None:
    page = opening(allowed="503|ERR_FAILED")
    busy = {"error": {"code": "busy", "message": "too many requests"}}
    answers: list[Any] = []

    def answer(route: Any) -> None:
        answers.append(route)
        if len(answers) == 1:
            route.fulfill(status=503, headers={"Retry-After": "0.3"}, json=busy)
        elif len(answers) == 3:
            route.abort()
        else:
            route.continue_()

    page.route("**/search", answer)
    page.locator("#items .picture").nth(3).click()
    expect(page.locator("#notice-text")).to_have_text("too many requests Trying again in 0.3 s.")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(12)
    page.locator("#hits .more").first.click()
    expect(page.locator("#notice-text")).to_contain_text("does not answer")
    expect(page.locator("#hits .card")).to_have_count(0)
    page.locator("#notice-action").click()
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(12)
    assert len(answers) == 4
