"""The report of a benchmark as a page, as text for a terminal, and as LaTeX."""

import re
from collections.abc import Mapping
from pathlib import Path

from lookalike.data.files import counted
from lookalike.experiments.results import differing, shared_settings
from lookalike.report import html, theme
from lookalike.report.benchmark import Part, Report, reads_best
from lookalike.report.benchmark_plot import relative_changes
from lookalike.report.benchmark_tables import costs_table, figures_table
from lookalike.report.tables import NOTHING

HOW_TO_READ = """Figures are of the test classes, in percent, as mean ± standard deviation over all combinations of one
repeat per fold (with a single fold: over repeats); combinations share models, so the deviation is not an error of the
mean. Bold: best, underlined: second best, among complete rows. The p-values are of paired tests over (fold, repeat)
runs, two-sided and not corrected for the number of rows; the runs share test pictures and most training classes, so
they are rather too small. Published numbers name their table of the thesis; its "+GSP" is with the zero-shot loss."""

# A white block would dazzle in the dark: there, what is light becomes dark, and colours stay what they are.
DARK = "<style>@media (prefers-color-scheme: dark) { #figure_1 { filter: invert(.91) hue-rotate(180deg) } }</style>"
TYPED = re.compile(r"(?P<when>\S+ \S+ UTC, code \w+): (?P<command>lookalike .*)")


def as_html(report: Report) -> str:
    parts = [html.paragraph(f"{_counted(report)}, from {report.folder}", faint=True)]
    if len(report.parts) > 1:
        parts.append(html.contents({f"part-{n}": part.title for n, part in enumerate(report.parts)}))
    parts.append(html.paragraph(" ".join(HOW_TO_READ.split())))
    for n, part in enumerate(report.parts):
        parts += [html.heading(part.title, anchor=f"part-{n}"), *_part(part, report)]
    typed = typed_commands(report.folder)
    if typed:
        parts += [html.heading("What was run"), html.code("\n\n".join(f"# {when}\n{line}" for line, when in typed))]
    if report.found.unreadable:
        parts.append(html.heading("Results that cannot be read"))
        parts.append(html.listing(f"{path.name}: {reason}" for path, reason in report.found.unreadable))
    return html.document("Benchmark", parts)


def as_text(report: Report, colour: bool = False) -> str:
    pieces = []
    for part in report.parts:
        pieces += [figures_table(part, report.metrics).text(colour), costs_table(part).text(colour)]
        pieces += ["\n".join(["Failed:", *(f"  {line}" for line in failures(part))])] if part.section.failed else []
    if report.found.unreadable:
        lines = [f"  {path.name}: {reason}" for path, reason in report.found.unreadable]
        pieces.append("\n".join(["Cannot be read:", *lines]))
    return "\n\n".join(pieces)


def as_latex(report: Report) -> str:
    tables = [table for part in report.parts for table in (figures_table(part, report.metrics), costs_table(part))]
    return "% \\usepackage{booktabs}\n\n" + "\n".join(table.latex() for table in tables)


def failures(part: Part) -> list[str]:
    return [
        f"{about.title}, fold {about.fold + 1}, repeat {about.repeat + 1}: {error}"
        for about, error in part.section.failed
    ]


def typed_commands(folder: Path) -> list[tuple[str, str]]:
    """What commands.txt says was typed, and when first; commands that were typed again stand there once."""
    file = folder / "commands.txt"
    found: list[tuple[str, str]] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else ():
        if match := TYPED.fullmatch(line):
            found.append((match["command"], match["when"]))
        elif found:  # of a command in several lines
            found[-1] = (f"{found[-1][0]}\n{line}", found[-1][1])
    times = [command for command, _ in found]
    first = dict(reversed(found))
    return [
        (command, first[command] + (f", {times.count(command)} times" if times.count(command) > 1 else ""))
        for command in dict.fromkeys(times)
    ]


def command_of(part: Part, report: Report) -> str:
    """For a folder that does not say what was typed: what would make these rows, but for settings that were set."""
    rows = [entry.row.about for entry in part.entries]

    def listed(words: list[str]) -> str:
        text = ",".join(dict.fromkeys(words))
        return f'"{text}"' if set(text) - set("abcdefghijklmnopqrstuvwxyz0123456789,-_.:/") else text

    methods = listed(["+".join(map(str, about.methods)) or "none" for about in rows])
    repeats = 1 + max(repeat for entry in part.entries for _, repeat in entry.row.planned)
    return " \\\n    ".join(
        [
            f"lookalike benchmark --protocol {part.section.protocol} --seeds {repeats}",
            f"--losses {listed([str(about.loss) for about in rows])}",
            f"--poolings {listed([str(about.pooling) for about in rows])} --methods {methods}",
            f"--data {listed([part.section.data])} --out {listed([str(report.folder)])}",
        ]
    )


def _part(part: Part, report: Report) -> list[str]:
    metric = report.metrics[0]
    pieces = []
    if reads_best(part.section.protocol):
        words = (
            "This protocol reports the best repeat by what steered it, which is the test set itself: figures flatter."
        )
        pieces.append(html.paragraph(words, faint=True))
    pieces.append(figures_table(part, report.metrics).html(titled=False))
    drawn = relative_changes(part, metric)
    if drawn is not None:
        caption = f"Change of {metric} in % of the baseline's: from 20 to 22 is +10 % here, +2.00 points in the table. "
        caption += "Whiskers: one standard deviation over pairs. Pale: models are missing."
        pieces.append(_chart(theme.as_bytes(drawn, "svg"), _said(part, metric), caption))
    pieces += [html.heading("Costs", 3), costs_table(part).html(titled=False)]
    if part.section.failed:
        pieces += [html.heading("Failed", 3), html.listing(failures(part))]
    if part.section.unfinished:
        names = sorted({about.title for about in part.section.unfinished})
        count = len(part.section.unfinished)
        begun = "1 model was begun and is" if count == 1 else f"{count} models were begun and are"
        words = f"{begun} not done: {', '.join(names)}."
        pieces.append(html.paragraph(words))
    pieces += [html.heading("What it was made with", 3), html.pairs(_versions(part))]
    if not typed_commands(report.folder):
        words = "The folder does not say what was typed. But for settings that were set besides, it was like this:"
        pieces += [html.paragraph(words), html.code(command_of(part, report))]
    return [*pieces, html.heading("Settings that all models share", 3), *_settings(part)]


def _chart(svg: bytes, alternative: str, caption: str) -> str:
    """As wide as the page at most, on a telephone, too; and dark in the dark."""
    image = svg.decode().replace("<defs>", f"{DARK}<defs>", 1).encode()
    picture = html.picture(image, "svg", alternative, caption)
    return picture.replace("<img ", '<img style="width: auto; max-width: 100%; background: none" ', 1)


def _settings(part: Part) -> list[str]:
    shared = shared_settings(part.section.results)
    if not shared:
        return [html.paragraph("The settings of the runs are not in the folder.")]
    pieces = [html.pairs({name: _plain(value) for name, value in shared.items()})]
    several = {
        name: sorted({_plain(each.settings.get(name)) for each in part.section.results if each.settings})
        for name in differing(part.section.results)
    }
    if several:
        pieces.append(html.heading("Settings in which models differ", 3))
        pieces.append(html.pairs({name: _listed(values) for name, values in several.items()}))
    return pieces


def _listed(values: list[str], most: int = 8) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return "; ".join(values[:most]) + more


def _versions(part: Part) -> dict[str, str]:
    results = part.section.results

    def every(values: list[str]) -> str:
        return ", ".join(sorted(set(values))) or "unknown"

    return {
        "lookalike": every([each.lookalike for each in results]),
        "torch": every([each.torch for each in results]),
        "code": part.section.code,
        "test pictures": part.section.tested,
        "machine": every([f"{each.device}, {each.threads} threads" for each in results]),
        "queries": every([f"{each.test['queries']:,}" for each in results if "queries" in each.test]),
    }


def _said(part: Part, metric: str) -> str:
    """The plot in words."""
    changes = [(entry.row.title, entry.relative) for entry in part.entries]
    told = [f"{title} {relative[0]:+.1f}%" for title, relative in changes if relative is not None]
    return f"Bars of the change of {metric}: {', '.join(told)}"


def _counted(report: Report) -> str:
    found = report.found
    words = [counted(len(found.results), "model")]
    words += [f"{len(found.failed)} failed"] if found.failed else []
    words += [f"{len(found.unfinished)} not done"] if found.unfinished else []
    return ", ".join(words)


def _plain(value: object) -> str:
    """As it would be typed.

    >>> _plain({"keep": 0.3, "init": None}), _plain([0.9, 0.999]), _plain(True), _plain({})
    ('keep=0.3, init=–', '0.9, 0.999', 'true', '–')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain(each)}" for name, each in value.items()) or NOTHING
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value)) or NOTHING
    if value is None:
        return NOTHING
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
