"""The tables of a benchmark: figures, costs, and one of everything for a spreadsheet."""

from lookalike.experiments.rows import Summary
from lookalike.experiments.significance import Comparison
from lookalike.report.benchmark import Entry, Part, Report, reads_best
from lookalike.report.published_numbers import NONE, explained, in_words, unlike
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.report.tables import Entry as Cell

INCOMPLETE = "†"


def figures_table(part: Part, metrics: tuple[str, ...]) -> Table:
    """A row for each method. Rows that are not complete take no part in being best."""
    entries = part.entries
    dims = {entry.row.results[0].dim for entry in entries if entry.row.results}
    size = f" {next(iter(dims))}-D" if len(dims) == 1 else ""
    joint = {entry.joined.dim for entry in entries if entry.joined}
    joined_size = f" {next(iter(joint))}-D" if len(joint) == 1 else " joined"
    best = reads_best(part.section.protocol)
    columns = [Column("method", "left"), *(Column(f"{metric}{size}, %", best="most") for metric in metrics)]
    columns += [Column(f"{metric} of the best repeat", best="most") for metric in metrics if best]
    columns += [Column(f"{metric}{joined_size}, %", best="most") for metric in metrics if joint]
    columns += [Column(f"{metrics[0]} against baseline, points"), Column("p, t-test"), Column("p, Wilcoxon")]
    columns.append(Column("best step"))
    told = [metric for metric in metrics if any(entry.published[metric] for entry in entries)]
    told_joined = [metric for metric in metrics if any(entry.published_joined.get(metric) for entry in entries)]
    columns += [Column(f"published {metric}{size}", "left") for metric in told]
    columns += [Column(f"published {metric}{joined_size}", "left") for metric in told_joined]
    losses = [str(entry.row.about.loss) for entry in entries]
    alone = len(set(losses)) == len(losses)  # of each loss there is one row: then losses are compared
    lines = []
    for entry in entries:
        row, steered = entry.row, entry.row.steered()
        ranked = row.is_complete
        cells = [words(row.title + ("" if row.is_complete else f" {INCOMPLETE}"))]
        cells += [_percent(entry.figures.get(metric), ranked) for metric in metrics]
        if best:
            cells += [number(100 * steered.test[m] if steered else None, ranked=ranked) for m in metrics]
        if joint:
            why = entry.not_joined or ""
            cells += [_percent(entry.joined.summary(m) if entry.joined else None, ranked, why) for m in metrics]
        cells += _compared(entry)
        cells.append(number(*(entry.best_step or (None, None)), digits=0, ranked=False))
        known = [entry.published[metric] for metric in told]
        known += [entry.published_joined.get(metric, ()) for metric in told_joined]
        cells += [words(in_words(each), explained(each, row)) for each in known]
        lines.append(Line(cells, "" if alone else str(row.about.loss)))
    nothing = [] if told or told_joined else [f"Beside these rows there is {NONE}."]
    return Table(columns, lines, part.title, (*notes(part), *nothing))


def costs_table(part: Part) -> Table:
    columns = [
        Column("method", "left"),
        Column("parameters of the pooling"),
        Column("of the whole head"),
        Column("ms per step", best="least"),
        Column("memory at most, MB", best="least"),
        Column("minutes per model"),
        Column("models"),
    ]
    lines = []
    for entry in part.entries:
        cost = entry.cost
        lines.append(
            Line(
                [
                    words(entry.row.title),
                    number(cost.pooling_parameters, digits=0, ranked=False),
                    number(cost.head_parameters, digits=0, ranked=False),
                    number(cost.milliseconds_per_step, digits=1),
                    number(cost.megabytes, digits=0),
                    number(cost.seconds / 60 if cost.seconds is not None else None, digits=1, ranked=False),
                    number(len(entry.row.results), digits=0, ranked=False),
                ]
            )
        )
    machines = {f"{each.device}, {each.threads} threads" for each in part.section.results}
    several = [f"Made on different machines ({'; '.join(sorted(machines))}): times do not compare."]
    return Table(columns, lines, f"Costs: {part.title}", several if len(machines) > 1 else ())


def everything(report: Report) -> Table:
    """Every row of every section with values in percent, to be read by machines."""
    names = ("protocol", "data", "code", "method", "loss", "pooling", "methods", "models", "missing", "dim")
    columns = [Column(name, "left") for name in names]
    for metric in report.metrics:
        columns += [Column(metric), Column(f"{metric} joined"), Column(f"{metric} published")]
    more = ("joined dim", "difference", "pairs", "p t-test", "p Wilcoxon", "baseline", "best step")
    columns += [Column(name) for name in (*more, "pooling parameters", "ms per step", "MB")]
    lines = []
    for part in report.parts:
        for entry in part.entries:
            row, about, cost = entry.row, entry.row.about, entry.cost
            against = entry.against or Comparison(0)
            dim = row.results[0].dim if row.results else None
            told = (about.protocol, about.data, about.code, row.title, str(about.loss), str(about.pooling))
            cells = [*map(words, told), words(" + ".join(map(str, about.methods)))]
            cells += [number(len(row.results)), number(len(row.missing)), number(dim)]
            for metric in report.metrics:
                known = entry.published[metric]
                cells += [
                    _percent(entry.figures.get(metric)),
                    _percent(entry.joined.summary(metric) if entry.joined else None),
                ]
                cells.append(number(known[0].mean, known[0].std) if known else number(None))
            cells += [number(entry.joined.dim if entry.joined else None), number(_times_100(against.difference))]
            cells += [number(against.pairs), number(against.t_test)]
            cells += [number(against.wilcoxon), words(entry.baseline.title)]
            cells += [number(*(entry.best_step or (None, None))), number(cost.pooling_parameters)]
            cells += [number(cost.milliseconds_per_step), number(cost.megabytes)]
            lines.append(Line(cells))
    return Table(columns, lines)


def notes(part: Part) -> list[str]:
    """What a reader must know before believing a table."""
    entries, said = part.entries, []
    for entry in entries:
        row = entry.row
        if not row.is_complete:
            places = ", ".join(f"fold {fold + 1} repeat {repeat + 1}" for fold, repeat in row.missing[:6])
            more = f" and {len(row.missing) - 6} more" if len(row.missing) > 6 else ""
            failed = f" ({row.failed} failed)" if row.failed else ""
            count = "1 model is" if len(row.missing) == 1 else f"{len(row.missing)} models are"
            said.append(f"{INCOMPLETE} {row.title}: {count} missing{failed}: {places}{more}.")
        if row.left_out:
            said.append(f"{row.title}: {len(row.left_out)} older results of the same models are left out.")
        if entry.joined and entry.joined.combinations > len(entry.joined.figures):
            kept, all_of = len(entry.joined.figures), entry.joined.combinations
            said.append(f"{row.title}: {kept} of {all_of:,} combinations were joined and measured.")
    still = [entry.row.title for entry in entries if entry.row.never_improved]
    if still:
        where = f"{', '.join(still)}: no run was ever better than its start"
        said.append(f"{where}: the figures are those of the untrained start.")
    said += _batches(part)
    said += _unlike(part)
    mixed: dict[tuple[str, ...], list[str]] = {}
    for entry in entries:
        if entry.row.mixed:
            mixed.setdefault(entry.row.mixed, []).append(entry.row.title)
    several = sum(len(entry.row.results) > 1 for entry in entries)
    for names, rows in mixed.items():
        where = "in every row" if len(rows) == several > 2 else ", ".join(rows)
        said.append(f"The models of a row differ in {', '.join(names)}: {where}.")
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        if entry.against is not None and entry.against.reason:
            reasons.setdefault(entry.against.reason, []).append(entry.row.title)
    said += [f"No p for {', '.join(titles)}: {reason}." for reason, titles in reasons.items()]
    baselines = dict.fromkeys(entry.baseline.title for entry in entries if entry.against is not None)
    if baselines:
        said.append(f"Baseline: {', '.join(baselines)}.")
    return said


def _unlike(part: Part) -> list[str]:
    """Where published numbers stand beside rows that were trained otherwise."""
    rows: dict[str, list[str]] = {}
    for entry in part.entries:
        if any(entry.published.values()) and (other := unlike(entry.row)):
            rows.setdefault(", ".join(other), []).append(entry.row.title)
    whole = len(part.entries)
    return [
        f"Not as the published numbers were made: {other}: {'every row' if len(of) == whole > 2 else ', '.join(of)}."
        for other, of in rows.items()
    ]


def _batches(part: Part) -> list[str]:
    """Where rows were trained with other batches than others, as where too few classes cannot fill them."""
    sizes: dict[str, tuple[int, ...]] = {}
    for entry in part.entries:
        known = {each.settings["batch_size"] for each in entry.row.results if "batch_size" in each.settings}
        if known:
            sizes[entry.row.title] = tuple(sorted(known))
    if len(set(sizes.values())) < 2:
        return []
    losses: dict[str, set[tuple[int, ...]]] = {}
    for entry in part.entries:
        if entry.row.title in sizes:
            losses.setdefault(str(entry.row.about.loss), set()).add(sizes[entry.row.title])
    if all(len(of) == 1 for of in losses.values()):  # it is the loss that decides: say it shortly
        sizes = {loss: next(iter(of)) for loss, of in losses.items()}
    rows: dict[tuple[int, ...], list[str]] = {}
    for name, size in sizes.items():
        rows.setdefault(size, []).append(name)
    told = [f"{' or '.join(map(str, size))} pictures for {', '.join(names)}" for size, names in rows.items()]
    why = "Where there are too few classes to fill them, they are made smaller, as the log.txt of a model says."
    return [f"Batches are not of one size: {'; '.join(told)}. {why}"]


def _compared(entry: Entry) -> list[Cell]:
    against = entry.against
    if against is None:
        return [words("baseline"), number(None), number(None)]
    difference = number(_times_100(against.difference), _times_100(against.spread), sign=True, ranked=False)
    why = against.reason or f"{against.pairs} pairs"
    return [difference, _p(against.t_test, why), _p(against.wilcoxon, why)]


def _p(value: float | None, hint: str) -> Cell:
    if value is None:
        return number(None, hint=hint)
    return Cell("< 0.001" if value < 0.001 else f"{value:.3f}", value, hint=hint)


def _percent(summary: Summary | None, ranked: bool = True, hint: str = "") -> Cell:
    if summary is None:
        return number(None, hint=hint)
    return number(100 * summary.mean, _times_100(summary.std), ranked=ranked, hint=hint)


def _times_100(value: float | None) -> float | None:
    return None if value is None else 100 * value
