"""The report of a benchmark as an HTML page, as text for a terminal, and as LaTeX."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from lookalike.data.files import counted
from lookalike.experiments.results import differing_settings, shared_settings
from lookalike.experiments.sections import Section
from lookalike.report import html, theme
from lookalike.report.benchmark import Report, reports_best
from lookalike.report.benchmark_notes import warnings
from lookalike.report.benchmark_plot import plot_changes
from lookalike.report.benchmark_tables import costs_table, metrics_table, spreadsheet_table
from lookalike.report.published_numbers import has_published
from lookalike.report.tables import NOTHING
from lookalike.retrieval.wording import explain_metrics

HOW_TO_READ = """Figures are of the test classes, in percent, as mean ± standard deviation over all combinations of one
repeat per fold (with a single fold: over repeats); combinations share models, so the deviation is not an error of the
mean. Bold: best, underlined: second best, among complete rows. The p-values are of paired tests over (fold, repeat)
runs, two-sided and not corrected for the number of rows. The runs share test pictures and most training classes, so
the p-values tend to be too small."""
PUBLISHED = 'Published numbers name their table of the thesis; its "+GSP" is with the zero-shot loss.'
BEST_REPEAT = "This protocol reports the repeat that is best on the test set, so its figures are too good."

COMMAND = re.compile(r"(?P<when>\S+ \S+ UTC, (?:code|version) \w+): (?P<command>lookalike .*)")
NEEDS_NO_QUOTES = re.compile(r"[a-z0-9,\-_.:/]*")
MOST_VALUES = 8  # of a setting that differs between models


def as_html(report: Report) -> str:
    """The whole report as one page."""
    parts = [html.paragraph(f"{_describe_counts(report)}, from {report.folder}", faint=True)]
    if len(report.sections) > 1:
        parts.append(html.contents({f"part-{n}": section.title for n, section in enumerate(report.sections)}))
    if report.outdated_note:
        parts.append(html.paragraph(report.outdated_note))
    parts.append(html.paragraph(" ".join(HOW_TO_READ.split())))
    parts.append(html.listing(explain_metrics(report.metrics)))
    if any(has_published(row) for section in report.sections for row in section.rows):
        parts.append(html.paragraph(PUBLISHED))
    for n, section in enumerate(report.sections):
        parts.append(html.heading(section.title, anchor=f"part-{n}"))
        parts += _section_parts(section, report)
    commands = read_commands(report.folder)
    if commands:
        text = "\n\n".join(f"# {when}\n{command}" for command, when in commands.items())
        parts += [html.heading("What was run"), html.code(text)]
    if report.unreadable:
        parts.append(html.heading("Results that cannot be read"))
        parts.append(html.listing(f"{path.name}: {reason}" for path, reason in report.unreadable))
    return html.document("Benchmark", parts)


def as_text(report: Report, colour: bool = False) -> str:
    """The tables for a terminal, with what failed and what cannot be read."""
    blocks = []
    if report.outdated_note:
        blocks.append(report.outdated_note)
    for section in report.sections:
        blocks += warnings(section)
        blocks.append(metrics_table(section, report.metrics).text(colour))
        blocks.append(costs_table(section).text(colour))
        if section.failed:
            blocks.append(_text_list("Failed:", _failures(section)))
    if report.unreadable:
        lines = [f"{path.name}: {reason}" for path, reason in report.unreadable]
        blocks.append(_text_list("Cannot be read:", lines))
    blocks.append("\n".join(explain_metrics(report.metrics)))
    return "\n\n".join(blocks)


def as_csv(report: Report) -> str:
    """Every row for a spreadsheet."""
    return spreadsheet_table(report).csv()


def as_latex(report: Report) -> str:
    """The tables for a LaTeX document."""
    tables = []
    for section in report.sections:
        tables += [metrics_table(section, report.metrics).latex(), costs_table(section).latex()]
    return "% \\usepackage{booktabs}\n\n" + "\n".join(tables)


def read_commands(folder: Path) -> dict[str, str]:
    """The commands in commands.txt, each with the time of its first use and how often it was used."""
    file = folder / "commands.txt"
    if not file.exists():
        return {}
    calls: list[tuple[str, str]] = []  # command, when
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        match = COMMAND.fullmatch(line)
        if match:
            calls.append((match["command"], match["when"]))
        elif calls:  # a command of several lines
            command, when = calls[-1]
            calls[-1] = (f"{command}\n{line}", when)
    counts = Counter(command for command, _ in calls)
    commands: dict[str, str] = {}
    for command, when in calls:
        if counts[command] > 1:
            when += f", {counts[command]} times"
        commands.setdefault(command, when)
    return commands


def _section_parts(section: Section, report: Report) -> list[str]:
    parts = []
    if reports_best(section.protocol):
        parts.append(html.paragraph(BEST_REPEAT, faint=True))
    parts += [f'<p role="note"><strong>{escape(warning)}</strong></p>' for warning in warnings(section)]
    parts.append(metrics_table(section, report.metrics).html(titled=False))
    parts += _chart(section, report.metrics[0])
    parts += [html.heading("Costs", 3), costs_table(section).html(titled=False)]
    if section.failed:
        parts += [html.heading("Failed", 3), html.listing(_failures(section))]
    if section.unfinished:
        titles = ", ".join(sorted({cell.title for cell in section.unfinished}))
        count = len(section.unfinished)
        started = "1 model was begun and is" if count == 1 else f"{count} models were begun and are"
        parts.append(html.paragraph(f"{started} not done: {titles}."))
    parts += [html.heading("Versions and machine", 3), html.pairs(_versions(section))]
    if not read_commands(report.folder):
        text = "The folder has no commands.txt. Apart from --set, this command gives the same rows:"
        parts += [html.paragraph(text), html.code(_probable_command(section, report.folder))]
    parts.append(html.heading("Settings that all models share", 3))
    parts += _settings_parts(section)
    return parts


def _chart(section: Section, metric: str) -> list[str]:
    """The bar plot; at most as wide as the page, and dark in dark mode."""
    figure = plot_changes(section, metric)
    if figure is None:
        return []
    changes = []
    for row in section.rows:
        change = row.change()
        if change is not None:
            changes.append(f"{row.title} {change[0]:+.2f}")
    alternative = f"Bars of the change of {metric}: {', '.join(changes)}"
    caption = f"Change of {metric} against the baseline, in points. "
    caption += "Whiskers: one standard deviation over pairs. Pale: models are missing."
    return [html.plot(theme.as_bytes(figure, "svg"), alternative, caption)]


def _settings_parts(section: Section) -> list[str]:
    shared = shared_settings(section.results)
    if not shared:
        return [html.paragraph("The settings of the runs are not in the folder.")]
    parts = [html.pairs({name: _format_value(value) for name, value in shared.items()})]
    differing = {}
    for name in differing_settings(section.results):
        values = sorted({_format_value(result.settings.get(name)) for result in section.results if result.settings})
        differing[name] = "; ".join(values[:MOST_VALUES])
        if len(values) > MOST_VALUES:
            differing[name] += f" and {len(values) - MOST_VALUES} more"
    if differing:
        parts += [html.heading("Settings in which models differ", 3), html.pairs(differing)]
    return parts


def _versions(section: Section) -> dict[str, str]:
    results = section.results
    return {
        "lookalike": _list_distinct(result.lookalike for result in results),
        "torch": _list_distinct(result.torch for result in results),
        "version of the results": section.version,
        "test pictures": section.tested,
        "machine": _list_distinct(f"{result.device}, {result.threads} threads" for result in results),
        "queries": _list_distinct(f"{result.test['queries']:,}" for result in results if "queries" in result.test),
    }


def _list_distinct(values: Iterable[str]) -> str:
    return ", ".join(sorted(set(values))) or "unknown"


def _failures(section: Section) -> list[str]:
    return [f"{cell.title}, {cell.run_label}: {cell.error}" for cell in section.failed]


def _text_list(title: str, lines: Iterable[str]) -> str:
    return "\n  ".join([title, *lines])


def _probable_command(section: Section, folder: Path) -> str:
    """A command that gives these rows, apart from the settings of --set."""
    repeats = 1
    losses, poolings, methods = [], [], []
    for row in section.rows:
        losses.append(str(row.cell.loss))
        poolings.append(str(row.cell.pooling))
        methods.append("+".join(map(str, row.cell.methods)) or "none")
        for _, repeat in (*row.missing, *(result.run for result in row.results)):
            repeats = max(repeats, repeat + 1)
    lines = [
        f"lookalike benchmark --protocol {section.protocol} --seeds {repeats}",
        f"--losses {_option_value(losses)}",
        f"--poolings {_option_value(poolings)} --methods {_option_value(methods)}",
        f"--data {_option_value([section.data])} --out {_option_value([str(folder)])}",
    ]
    return " \\\n    ".join(lines)


def _option_value(values: list[str]) -> str:
    text = ",".join(dict.fromkeys(values))
    if NEEDS_NO_QUOTES.fullmatch(text):
        return text
    return f'"{text}"'


def _describe_counts(report: Report) -> str:
    counts = Counter(cell.status for cell in report.cells)
    text = counted(counts["done"], "model")
    if counts["failed"]:
        text += f", {counts['failed']} failed"
    if counts["unfinished"]:
        text += f", {counts['unfinished']} not done"
    return text


def _format_value(value: object) -> str:
    """A setting as it would be typed.

    Examples:
        >>> _format_value({"keep": 0.3, "init": None}), _format_value([0.9, 0.999])
        ('keep=0.3, init=–', '0.9, 0.999')
        >>> _format_value(True), _format_value({})
        ('true', '–')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_format_value(inner)}" for name, inner in value.items()) or NOTHING
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_format_value, value)) or NOTHING
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
