"""Sections of the benchmark tables: the rows of one protocol and data set, which may be compared with each other.

Results of another RESULTS_VERSION or of other test pictures form a section of their own and are never averaged.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from lookalike.experiments.results import CellResult, FoldRepeat, differing_settings
from lookalike.experiments.rows import Row

Key = tuple[str, str, str, str]  # protocol, data, version, test pictures


@dataclass
class Section:
    """The rows that may be compared with each other: one protocol, data set, version and set of test pictures."""

    protocol: str
    data: str
    version: str
    tested: str
    title: str
    rows: list[Row]
    failed: list[CellResult]
    unfinished: list[CellResult]

    @property
    def results(self) -> list[CellResult]:
        """The finished cells of all rows."""
        return [result for row in self.rows for result in row.results]

    def find_row(self, title: str) -> Row | None:
        """The first row with this title, with or without its variant."""
        for row in self.rows:
            if title in (row.title, row.cell.title):
                return row
        return None

    def baseline_of(self, row: Row, title: str | None = None) -> Row:
        """The row to compare ``row`` with.

        Args:
            row: of this section.
            title: of the baseline. By default it is the same loss with average pooling, or else the first row.
        """
        named = self.find_row(title or "")
        if named is not None:
            return named
        same_loss = [other for other in self.rows if other.cell.is_baseline and other.cell.loss == row.cell.loss]
        for other in same_loss:
            if other.variant == row.variant:
                return other
        return [*same_loss, *self.rows][0]


def group_sections(
    cells: Sequence[CellResult], planned_folds: Mapping[str, int] = MappingProxyType({})
) -> list[Section]:
    """Sort the cells of a results folder into sections and rows.

    Returns:
        Sections by protocol and data set. Of several versions of the same, the latest results come first.
    """
    groups: dict[Key, list[CellResult]] = {}
    for cell in cells:
        groups.setdefault((cell.protocol, cell.data, cell.version, cell.tested), []).append(cell)

    def order(key: Key) -> tuple[str, str, float]:
        protocol, data, _, _ = key
        return protocol, data, -max(cell.written for cell in groups[key])

    sections = []
    for key in sorted(groups, key=order):
        protocol, data, version, tested = key
        sections.append(
            Section(
                protocol,
                data,
                version,
                tested,
                title=f"{data}, protocol {protocol}{_version_suffix(key, list(groups))}",
                rows=list(_rows(groups[key], planned_folds.get(protocol, 1))),
                failed=[cell for cell in groups[key] if cell.status == "failed"],
                unfinished=[cell for cell in groups[key] if cell.status == "unfinished"],
            )
        )
    return sections


def frozen_features(section: Section) -> dict[str, dict[str, Any]]:
    """Test metrics of averaged frozen features, by the title of their row; empty if no result has them."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for result in section.results:
        if result.frozen is not None:
            entries.setdefault((result.settings.get("backbone", ""), str(result.settings.get("size"))), result.frozen)
    titled = {}
    for (backbone, _), frozen in entries.items():
        title = f"frozen features, {frozen['dim']}-D"
        if len(entries) > 1:
            title += f", {backbone} {frozen['size']}"
        titled[title] = frozen
    return titled


def _version_suffix(key: Key, all_keys: Sequence[Key]) -> str:
    """Distinguishes sections of the same protocol and data set; empty if there is one."""
    _, _, version, tested = key
    same = [other for other in all_keys if other[:2] == key[:2]]
    suffix = ""
    if any(other[2] != version for other in same):
        suffix += f", version {version[:8]}"
    if any(other[3] != tested for other in same):
        suffix += f", test pictures {tested[:8]}"
    return suffix


def _rows(cells: list[CellResult], planned_folds: int) -> Iterator[Row]:
    folds, repeats = planned_folds, 1
    titles: dict[str, list[CellResult]] = {}
    for cell in sorted(cells, key=_order_of_rows):
        folds = max(folds, cell.fold + 1)
        repeats = max(repeats, cell.repeat + 1)
        titles.setdefault(cell.title, []).append(cell)
    planned = list(product(range(folds), range(repeats)))
    for same_title in titles.values():
        done = [cell for cell in same_title if cell.status == "done"]
        failed_runs = {cell.run for cell in same_title if cell.status == "failed"}
        for variant, results in _split_variants(done).items():
            latest: dict[FoldRepeat, CellResult] = {}
            for result in sorted(results, key=lambda result: result.written):
                latest[result.run] = result
            current = tuple(latest[run] for run in sorted(latest))
            missing = tuple(run for run in planned if run not in latest)
            yield Row(
                cell=current[0] if current else same_title[0],
                results=current,
                missing=missing,
                failed=len(failed_runs.intersection(missing)),
                older=tuple(result for result in results if result not in current),
                differing=tuple(differing_settings(current)),
                variant=variant,
            )


def _order_of_rows(cell: CellResult) -> tuple[Any, ...]:
    methods = list(map(str, cell.methods))
    return str(cell.loss), not cell.is_baseline, str(cell.pooling), len(methods), methods, cell.run


def _split_variants(results: list[CellResult]) -> dict[str, list[CellResult]]:
    """Split results of one title by their settings if a run was done more than once with different ones.

    Returns:
        Results by the settings that distinguish them; one entry named "" if nothing needs to be split.
    """
    names = differing_settings(results)
    if _repeated_runs(results, []) == _repeated_runs(results, names):
        return {"": results}

    def count_values(name: str) -> int:
        return len({repr(result.settings.get(name)) for result in results})

    # Runs set some values themselves, such as a learning rate. Drop the names that do not help to distinguish results.
    for name in sorted(names, key=count_values, reverse=True):
        others = [other for other in names if other != name]
        if _repeated_runs(results, others) == _repeated_runs(results, names):
            names = others
    variants: dict[str, list[CellResult]] = {}
    for result in results:
        variant = ", ".join(f"{name}={result.settings.get(name)}" for name in names)
        variants.setdefault(variant, []).append(result)
    return variants


def _repeated_runs(results: list[CellResult], names: list[str]) -> int:
    """How many results share their run and the settings ``names`` with an earlier one."""
    distinct = set()
    for result in results:
        distinct.add((result.run, *(repr(result.settings.get(name)) for name in names)))
    return len(results) - len(distinct)
