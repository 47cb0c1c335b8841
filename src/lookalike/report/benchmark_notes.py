"""Notes below a benchmark table: what a reader must know before trusting it."""

from lookalike.experiments.protocol import built_in_protocol
from lookalike.experiments.rows import Row
from lookalike.experiments.sections import Section
from lookalike.report.published_numbers import differences_from_protocol, has_published

INCOMPLETE = "†"
OTHERWISE = "‡"  # beside a published number that was made with other settings
MOST_NAMED = 6  # missing runs named in a note
SMALLER_BATCHES = "Batches shrink where there are too few classes to fill them; see the log.txt of a model."


def notes(section: Section) -> list[str]:
    """All notes of a section: missing models, odd settings, missing p-values, baselines."""
    lines: list[str] = []
    for row in section.rows:
        lines += _row_notes(row)
    unimproved = [row.title for row in section.rows if row.never_improved]
    if unimproved:
        lines.append(
            f"{', '.join(unimproved)}: no run was ever better than its start: "
            "the figures are those of the untrained start."
        )
    lines += _batch_size_notes(section)
    lines += _protocol_notes(section)
    lines += _deviation_notes(section)
    lines += _differing_settings_notes(section)
    lines += _no_p_value_notes(section)
    baselines: list[str] = []
    for row in section.rows:
        if row.comparison is not None and row.baseline is not None and row.baseline.title not in baselines:
            baselines.append(row.baseline.title)
    if baselines:
        lines.append(f"Baseline: {', '.join(baselines)}.")
    return lines


def warnings(section: Section) -> list[str]:
    """Warnings to read before the table of a section: batches that are smaller than planned."""
    shrunk: dict[tuple[int, int], list[str]] = {}
    for row in section.rows:
        for result in row.results:
            size, asked = result.settings.get("batch_size"), result.asked_batch_size
            if size is None or asked is None or size >= asked:
                continue
            titles = shrunk.setdefault((size, asked), [])
            if row.title not in titles:
                titles.append(row.title)
    lines = []
    for (size, asked), titles in sorted(shrunk.items()):
        where = "every row" if len(titles) == len(section.rows) > 1 else ", ".join(titles)
        lines.append(
            f"Warning: batches have {size} pictures instead of {asked}, as there are too few training classes: {where}."
        )
    return lines


def _row_notes(row: Row) -> list[str]:
    lines = []
    if not row.is_complete:
        count = "1 model is" if len(row.missing) == 1 else f"{len(row.missing)} models are"
        failed = f" ({row.failed} failed)" if row.failed else ""
        runs = ", ".join(f"fold {fold + 1} repeat {repeat + 1}" for fold, repeat in row.missing[:MOST_NAMED])
        if len(row.missing) > MOST_NAMED:
            runs += f" and {len(row.missing) - MOST_NAMED} more"
        lines.append(f"{INCOMPLETE} {row.title}: {count} missing{failed}: {runs}.")
    if row.older:
        lines.append(f"{row.title}: {len(row.older)} older results of the same models are left out.")
    if row.joined is not None and row.joined.combinations > len(row.joined.metrics):
        measured, total = len(row.joined.metrics), row.joined.combinations
        lines.append(f"{row.title}: {measured} of {total:,} combinations were joined and measured.")
    return lines


def _batch_size_notes(section: Section) -> list[str]:
    """Rows trained with different batch sizes, because some have too few classes to fill a batch."""
    sizes_by_row: dict[str, tuple[int, ...]] = {}
    sizes_by_loss: dict[str, set[tuple[int, ...]]] = {}
    for row in section.rows:
        distinct = {result.settings["batch_size"] for result in row.results if "batch_size" in result.settings}
        if distinct:
            sizes_by_row[row.title] = tuple(sorted(distinct))
            sizes_by_loss.setdefault(str(row.cell.loss), set()).add(sizes_by_row[row.title])
    if len(set(sizes_by_row.values())) < 2:
        return []
    names_by_sizes: dict[tuple[int, ...], list[str]] = {}
    if max(map(len, sizes_by_loss.values())) == 1:  # the loss decides: name losses, not rows
        for loss, [sizes] in sizes_by_loss.items():
            names_by_sizes.setdefault(sizes, []).append(loss)
    else:
        for title, sizes in sizes_by_row.items():
            names_by_sizes.setdefault(sizes, []).append(title)
    texts = []
    for sizes, names in names_by_sizes.items():
        texts.append(f"{' or '.join(map(str, sizes))} pictures for {', '.join(names)}")
    return [f"Batches are not of one size: {'; '.join(texts)}. {SMALLER_BATCHES}"]


def _protocol_notes(section: Section) -> list[str]:
    """Rows that were trained with other settings than their published numbers."""
    titles_by_difference: dict[str, list[str]] = {}
    for row in section.rows:
        if has_published(row):
            difference = ", ".join(differences_from_protocol(row))
            titles_by_difference.setdefault(difference, []).append(row.title)
    titles_by_difference.pop("", None)
    lines = []
    for difference, titles in titles_by_difference.items():
        where = ", ".join(titles)
        if len(titles) == len(section.rows) > 2:
            where = "every row"
        lines.append(f"{OTHERWISE} Not as the published numbers were made: {difference}: {where}.")
    return lines


def _deviation_notes(section: Section) -> list[str]:
    """Where the protocol departs from the text that it follows."""
    protocol = built_in_protocol(section.protocol)
    if protocol is None:
        return []
    runs = []
    for row in section.rows:
        runs += [{"pooling": row.cell.pooling.name, **result.settings} for result in row.results]
    lines = []
    for subject, reason in protocol.deviations_of(runs).items():
        lines.append(f"Not as printed, {subject}: {reason}.")
    return lines


def _differing_settings_notes(section: Section) -> list[str]:
    """Rows whose models do not all have the same settings."""
    titles_by_names: dict[tuple[str, ...], list[str]] = {}
    rows_with_several = 0
    for row in section.rows:
        rows_with_several += len(row.results) > 1
        if row.differing:
            titles_by_names.setdefault(row.differing, []).append(row.title)
    lines = []
    for names, titles in titles_by_names.items():
        where = ", ".join(titles)
        if len(titles) == rows_with_several > 2:
            where = "in every row"
        lines.append(f"The models of a row differ in {', '.join(names)}: {where}.")
    return lines


def _no_p_value_notes(section: Section) -> list[str]:
    titles_by_reason: dict[str, list[str]] = {}
    for row in section.rows:
        if row.comparison is not None and row.comparison.reason:
            titles_by_reason.setdefault(row.comparison.reason, []).append(row.title)
    return [f"No p for {', '.join(titles)}: {reason}." for reason, titles in titles_by_reason.items()]
