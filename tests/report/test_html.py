"""A page that needs nothing and runs nothing."""

import base64
import re
from html.parser import HTMLParser

from lookalike.report import html

NASTY = '</style><script>alert("x")</script>&'


class Reader(HTMLParser):
    """Collects tags, addresses and text; void elements have no end."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def whole() -> str:
    parts = [
        html.heading(NASTY, anchor="a"),
        html.paragraph(NASTY),
        html.contents({"a": NASTY}),
        html.listing([NASTY]),
        html.pairs({NASTY: NASTY}),
        html.code(NASTY),
        html.picture(b"<svg/>", "svg", NASTY, NASTY),
    ]
    return html.document(NASTY, parts)


def test_text_is_text() -> None:
    reader = Reader()
    reader.feed(whole())
    assert reader.open == []
    assert "script" not in reader.tags
    assert reader.text.count(NASTY) == 10
    assert reader.tags.count("style") == 1


def test_nothing_is_loaded_from_elsewhere() -> None:
    reader = Reader()
    reader.feed(whole())
    assert all(address.startswith(("data:", "#")) for address in reader.addresses)
    assert "link" not in reader.tags
    assert not re.search(r"url\(|@import|https?:", whole())


def test_the_browser_is_told_so_before_anything_else() -> None:
    text = whole()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    assert "script-src" not in rules
    assert rules["img-src"] == "data:"
    assert text.index("Content-Security-Policy") < text.index("<title>") < text.index("<style>")


def test_a_picture_is_inside() -> None:
    found = re.search(r'src="data:image/png;base64,([^"]+)"', html.picture(b"\x89PNG", "png", "a picture"))
    assert found is not None
    assert base64.b64decode(found[1]) == b"\x89PNG"


def test_light_dark_and_paper() -> None:
    assert "prefers-color-scheme: dark" in html.STYLE
    assert "@media print" in html.STYLE
