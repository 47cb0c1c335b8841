"""An HTML page in one file: loads nothing and runs nothing. For light mode, dark mode and print."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

# Text is escaped. In addition, the browser must not load or run anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

# In dark mode, light becomes dark and hues stay.
DARK_PLOT = (
    "<style>@media (prefers-color-scheme: dark) { #figure_1 { filter: invert(.91) hue-rotate(180deg) } }</style>"
)
JPEG_QUALITY = 80

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #6b6b6b; --rule: #d5d5d5; --band: #f5f5f3 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --paper: #17181a; --faint: #a0a0a0; --rule: #3d3f42; --band: #202225 }
}
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 86rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1, h2, h3, p, li { overflow-wrap: break-word }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .4rem; padding-top: .8rem; border-top: 1px solid var(--rule) }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .3rem }
p { max-width: 46rem; margin: .4rem 0 }
nav { margin: .8rem 0 } nav a { margin-right: 1.2rem }
a { color: inherit }
.wide { overflow-x: auto; margin: .8rem 0 }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--faint); padding-bottom: .3rem }
th, td { padding: .28rem .7rem; white-space: nowrap }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); white-space: normal; min-width: 4.5rem }
th { font-weight: 600 } tbody th { font-weight: 400; white-space: normal; min-width: 8rem }
.word { white-space: nowrap }
tbody th, thead th:first-child { position: sticky; left: 0; background: var(--paper) }
th:first-child, td:first-child { padding-left: .2rem }
.left { text-align: left } .right { text-align: right }
tbody + tbody tr:first-child > * { border-top: 1px solid var(--rule) }
tbody tr:hover > * { background: var(--band) }
[title] { text-decoration: underline dotted var(--faint); text-underline-offset: .25em; cursor: help }
.notes, .faint { color: var(--faint); font-size: .88rem } .notes { padding-left: 1.1rem; max-width: 60rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; font-size: .88rem; max-width: 60rem }
dt { color: var(--faint) } dd { margin: 0; overflow-wrap: anywhere }
figure { margin: 1rem 0; max-width: 62rem } figcaption { color: var(--faint); font-size: .88rem }
figure img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; display: block; margin-bottom: .4rem }
pre { background: var(--band); padding: .6rem .8rem; overflow-x: auto; font-size: .85rem; border-radius: 4px }
@media (max-width: 40rem) {
  body { padding: 1.2rem .9rem 3rem } th, td { padding: .28rem .45rem }
  .large { overflow-x: auto } .large img { max-width: none; width: 36rem }
  .large figcaption { position: sticky; left: 0; max-width: calc(100vw - 1.8rem) }
}
@media print {
  :root { --ink: #000; --paper: #fff; --faint: #444; --rule: #aaa; --band: #fff }
  body { max-width: none; padding: 0; font-size: 10pt } nav { display: none }
  .wide { overflow: visible } table { font-size: 7.5pt } th, td { white-space: normal; padding: .15rem .35rem }
  figure, tbody tr { break-inside: avoid } h2, h3 { break-after: avoid }
  @page { size: A4 landscape; margin: 14mm }
}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A complete page.

    Args:
        title: of the window and the first heading.
        parts: HTML made by the functions below, or by ``Table.html``.
    """
    body = "\n".join(parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{body}
</body>
</html>
"""


def heading(text: str, level: int = 2, anchor: str = "") -> str:
    """A heading; ``anchor`` makes it a target for ``contents``."""
    anchor_attribute = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h{level}{anchor_attribute}>{escape(text)}</h{level}>"


def paragraph(text: str, faint: bool = False) -> str:
    """A paragraph; ``faint`` makes it small and grey."""
    style = ' class="faint"' if faint else ""
    return f"<p{style}>{escape(text)}</p>"


def contents(entries: Mapping[str, str]) -> str:
    """Links to headings of this page."""
    links = [f'<a href="#{escape(anchor)}">{escape(text)}</a>' for anchor, text in entries.items()]
    return f"<nav>{' '.join(links)}</nav>"


def listing(items: Iterable[str]) -> str:
    """A list with bullets."""
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def pairs(values: Mapping[str, Any]) -> str:
    """Names and values, one pair below the other."""
    entries = [f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in values.items()]
    return f"<dl>{''.join(entries)}</dl>"


def code(text: str) -> str:
    """A block of code."""
    return f"<pre>{escape(text)}</pre>"


def picture(content: bytes, kind: str, alternative: str, caption: str = "", *, large: bool = False) -> str:
    """A file inside the page.

    Args:
        content: Of the file.
        kind: "svg", "png" or "jpeg".
        alternative: For readers who cannot see it.
        caption: Below it.
        large: It cannot be read when it is as small as a phone, where it scrolls.
    """
    caption_part = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    opening = '<figure class="large">' if large else "<figure>"
    return f'{opening}<img src="{_source(content, kind)}" alt="{escape(alternative)}">{caption_part}</figure>'


def plot(svg: bytes, alternative: str, caption: str = "") -> str:
    """A plot of ``theme.as_bytes``: at most as wide as the page, and dark in dark mode."""
    text = svg.decode().replace("<defs>", f"{DARK_PLOT}<defs>", 1)
    made = picture(text.encode(), "svg", alternative, caption)
    return made.replace("<img ", '<img style="width: auto; max-width: 100%; background: none" ', 1)


def image(shown: Image, alternative: str, side: int | None = None) -> str:
    """A picture as an ``<img>`` with a JPEG.

    Args:
        shown: The picture.
        alternative: For readers who cannot see it.
        side: Longest side in pixels; None: as it is.
    """
    return f'<img src="{_source(as_jpeg(shown, side), "jpeg")}" alt="{escape(alternative)}">'


def as_jpeg(shown: Image, side: int | None = None) -> bytes:
    """Encode a picture as JPEG, with a longest side of at most ``side`` pixels."""
    from PIL.Image import Resampling

    smaller = shown.convert("RGB")
    if side is not None:
        smaller.thumbnail((side, side), Resampling.LANCZOS)
    file = BytesIO()
    smaller.save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _source(content: bytes, kind: str) -> str:
    media = {"svg": "image/svg+xml", "png": "image/png", "jpeg": "image/jpeg"}[kind]
    return f"data:{media};base64,{b64encode(content).decode()}"
