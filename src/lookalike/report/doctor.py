"""The page of ``lookalike doctor``: findings with pictures side by side, decided with one key each."""

import json
from base64 import b64encode
from hashlib import sha256
from html import escape

from lookalike.data.pictures import UnreadablePicture
from lookalike.doctor.examine import Examination, Finding
from lookalike.doctor.fixes import COLUMNS, decide
from lookalike.report import html
from lookalike.report.html import POLICY, document, heading, paragraph

SHOWN = 200  # findings of a kind that have pictures; the CSV has all
MOST_BESIDE = 4  # pictures of a finding
SIDE = 160  # pixels of a picture on the page
TITLES = {
    "broken": "Files that cannot be read",
    "exact duplicate": "The same file twice",
    "near duplicate": "The same photograph twice",
    "doubtful label": "Doubtful labels",
    "outlier": "Unlike everything else",
    "tiny": "Tiny pictures",
    "few pictures": "Classes with few pictures",
    "confused classes": "Classes that are taken for each other",
}
STYLE = """
.finding { display: flex; gap: 1rem; align-items: center; padding: .5rem; border-top: 1px solid var(--rule) }
.finding.current { outline: 2px solid #3b6fd4; outline-offset: -2px }
.finding figure { margin: 0; width: 160px } .finding img { max-height: 160px; width: auto }
.finding figcaption { overflow-wrap: anywhere }
.finding .text { flex: 1; min-width: 12rem }
.finding button { font: inherit; margin: .2rem .3rem .2rem 0; padding: .15rem .6rem }
.finding button[aria-pressed=true] { background: #3b6fd4; color: #fff }
.bar { position: sticky; top: 0; background: var(--paper); padding: .6rem 0; z-index: 2 }
@media (max-width: 40rem) { .finding { flex-wrap: wrap } .finding figure img { width: auto; max-width: 100% } }
"""
SCRIPT = """
"use strict";
const rows = JSON.parse(document.getElementById("rows").textContent);
const columns = JSON.parse(document.getElementById("columns").textContent);
const list = [...document.querySelectorAll(".finding[data-row]")];
let current = 0;
function show(element) {
  const action = rows[element.dataset.row][0];
  for (const button of element.querySelectorAll("button"))
    button.setAttribute("aria-pressed", button.dataset.action === action);
}
function go(to) {
  list[current]?.classList.remove("current");
  current = Math.max(0, Math.min(list.length - 1, to));
  list[current]?.classList.add("current");
  list[current]?.scrollIntoView({ block: "nearest" });
}
function decide(element, action) {
  if (!element.querySelector(`[data-action=${action}]`)) return;
  rows[element.dataset.row][0] = action;
  show(element);
}
list.forEach((element, number) => {
  show(element);
  for (const button of element.querySelectorAll("button"))
    button.addEventListener("click", () => { go(number); decide(element, button.dataset.action); });
});
const keys = { r: "relabel", d: "drop", k: "keep" };
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in keys && list.length) { decide(list[current], keys[event.key]); go(current + 1); }
  else if (event.key === "ArrowDown") go(current + 1);
  else if (event.key === "ArrowUp") go(current - 1);
  else return;
  event.preventDefault();
});
document.getElementById("save").addEventListener("click", () => {
  const cell = text => /[",\\r\\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const text = [columns, ...rows].map(row => row.map(cell).join(",")).join("\\n") + "\\n";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = "findings.csv";
  link.click();
});
go(0);
"""


def make_page(examination: Examination, csv_rows: list[list[str]], command: str, confidence: float) -> str:
    """Make the page.

    Args:
        examination: The findings.
        csv_rows: Rows of findings.csv, one for each finding.
        command: The command that applies the decisions.
        confidence: From which a relabelling is suggested.
    """
    parts = [
        f"<style>{STYLE}</style>",
        paragraph(
            "Decide with one key: r relabels, d drops, k keeps; the arrow keys move. The suggestions are chosen "
            "already. Save the decisions, then apply them:"
        ),
        f"<pre>{escape(command)}</pre>",
        '<p class="bar"><button id="save">Save findings.csv</button></p>',
    ]
    by_kind: dict[str, list[int]] = {}
    for number, finding in enumerate(examination.findings):
        by_kind.setdefault(finding.kind, []).append(number)
    for kind, title in TITLES.items():
        numbers = by_kind.get(kind, [])
        if not numbers:
            continue
        parts.append(heading(f"{title} ({len(numbers):,})"))
        for number in numbers[:SHOWN]:
            parts.append(_finding(examination, examination.findings[number], number, confidence))
        if len(numbers) > SHOWN:
            parts.append(paragraph(f"{len(numbers) - SHOWN:,} more in findings.csv", faint=True))
    if not examination.findings:
        parts.append(paragraph("Nothing was found."))
    parts.append(_data("rows", csv_rows))
    parts.append(_data("columns", list(COLUMNS)))
    parts.append(f"<script>{SCRIPT}</script>")
    digest = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    page = document(f"Data doctor: {examination.pictures.name}", parts)
    return page.replace(POLICY, f"{POLICY}; script-src 'sha256-{digest}'")


def _data(name: str, value: object) -> str:
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _finding(examination: Examination, finding: Finding, number: int, confidence: float) -> str:
    pictures = "".join(_figure(examination, position) for position in finding.shown[:MOST_BESIDE])
    if finding.picture < 0:
        text = f'<div class="text"><p><strong>{escape(finding.name)}</strong>: {escape(finding.reason)}</p></div>'
        return f'<div class="finding about-classes">{pictures}{text}</div>'
    actions = ["keep", "drop"]
    if finding.new_label:
        actions.insert(0, "relabel")
    suggested = decide(finding, confidence)
    buttons = []
    for action in actions:
        text = f"relabel: {finding.new_label}" if action == "relabel" else action
        pressed = str(action == suggested).lower()
        buttons.append(f'<button data-action="{action}" aria-pressed="{pressed}">{escape(text)}</button>')
    text = f'<div class="text"><p>{escape(finding.reason)}</p><p>{"".join(buttons)}</p></div>'
    return f'<div class="finding" data-row="{number}">{pictures}{text}</div>'


def _figure(examination: Examination, i: int) -> str:
    pictures = examination.pictures
    label = pictures.classes[pictures.labels[i]]
    caption = f"<figcaption>{escape(label)}<br>{escape(pictures.names[i])}</figcaption>"
    try:
        image = pictures.image(i)
    except UnreadablePicture:
        return f"<figure>{caption}</figure>"
    return f"<figure>{html.image(image, pictures.names[i], SIDE)}{caption}</figure>"
