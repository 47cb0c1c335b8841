"""Published numbers to print beside ours: thesis Tables 3.1, 3.2, 3.3, 5.1, 5.2, 5.3 and 5.4.

The files in ``published/`` are laid out like the tables, a line for each method and data set, so that they can be
compared with the pages. A number has the keys of its column, its row and its table; the first of these wins. Tables 3.1
and 5.1 come from different runs and have different protocols, fair-ccp and fair.

Reference: Y. Z. Gürbüz, thesis: chance-constrained programming in chapter 3, generalized sum pooling in chapter 5.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from lookalike._util.untrusted import read_yaml
from lookalike.objectives import full_name
from lookalike.objectives.presets import DATA_SETS

FOLDER = Path(__file__).parent / "published"
TABLES = ("3.1", "3.2", "3.3", "5.1", "5.2", "5.3", "5.4")
THESIS = "thesis"
SAME_METRIC = {"P@1": "R@1"}  # for one nearest neighbour, precision and recall are the same


@dataclass(frozen=True)
class Published:
    """One number of a table, in percent (steps: a count).

    Attributes:
        method: as printed, with the rows above that a "+GSP" continues.
        metric: P@1, R@1, MAP@R or steps.
        size: of the embedding; 512 under fair evaluation is four models of 128 joined.
        loss: None: a method that is not implemented here.
        pooling: None: not named, in another paper.
        zero_shot: with the zero-shot loss; always so for "+GSP" in the tables.
        memory: with XBM.
        variant: S, L, or S/L if the table does not say which; None: not named.
        settings: that a table varies.
        reported_by: another paper that the thesis quotes, or the thesis.
        note: doubts about the number.
    """

    table: str
    method: str
    data_set: str
    metric: str
    mean: float
    std: float | None = None
    protocol: str = ""
    backbone: str = ""
    size: int = 0
    loss: str | None = None
    pooling: str | None = None
    zero_shot: bool = False
    memory: bool = False
    ccp: bool = False
    variant: str | None = None
    settings: dict[str, float] = field(default_factory=dict, hash=False)
    reported_by: str = THESIS
    note: str | None = None

    def __str__(self) -> str:
        if self.metric == "steps":
            return f"{self.mean:,.0f}"
        if self.std is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.std:.2f}"


def published(
    *,
    data_set: str | None = None,
    loss: str | None = None,
    pooling: str | None = None,
    zero_shot: bool | None = None,
    memory: bool | None = None,
    ccp: bool | None = None,
    variant: str | None = None,
    size: int | None = None,
    backbone: str | None = None,
    protocol: str | None = None,
    metric: str | None = None,
    table: str | None = None,
    reported_by: str | None = None,
    settings: Mapping[str, float] | None = None,
) -> tuple[Published, ...] | None:
    """Find published numbers.

    All arguments restrict the search; None allows anything. Name the protocol or the table, because the same method
    has different numbers in different tables.

    Args:
        metric: P@1 also finds R@1, which is the same.
        variant: S or L also finds numbers printed as S/L, and those without variants.

    Returns:
        The numbers in the order of the tables; None if there are none.

    Raises:
        ValueError: there is no such table.

    Examples:
        >>> [number] = published(table="5.1", data_set="cub", loss="c2", pooling="gsp", size=128, metric="MAP@R")
        >>> str(number), number.method
        ('21.53 ± 0.24', 'C2+GSP')
        >>> published(data_set="cub", pooling="netvlad") is None
        True
    """
    if table is not None and table not in TABLES:
        raise ValueError(f"table must be one of {', '.join(TABLES)}, got {table!r}")
    keys: dict[str, Any] = {
        "data_set": data_set,
        "loss": None if loss is None else full_name(loss),
        "pooling": pooling,
        "zero_shot": zero_shot,
        "memory": memory,
        "ccp": ccp,
        "size": size,
        "backbone": backbone,
        "protocol": protocol,
        "reported_by": reported_by,
        "settings": None if settings is None else dict(settings),
    }
    wanted = {name: value for name, value in keys.items() if value is not None}
    numbers = []
    for table_name in TABLES if table is None else (table,):
        for number in read_table(table_name):
            is_same_metric = metric is None or _canonical(metric) == _canonical(number.metric)
            is_same_variant = variant is None or number.variant is None or variant in number.variant.split("/")
            if is_same_metric and is_same_variant and _has(number, wanted):
                numbers.append(number)
    return tuple(numbers) or None


@cache
def read_table(name: str) -> tuple[Published, ...]:
    """Read every number of a table, row by row.

    Raises:
        ValueError: the file has an unknown key, or a note without a number.
    """
    path = FOLDER / f"table-{name}.yaml"
    content = read_yaml(path)
    notes = content.pop("notes", [])
    keys = {entry.name for entry in fields(Published)}
    numbers = []
    for values in _read_cells(content):
        unknown = sorted(set(values) - keys)
        if unknown:
            raise ValueError(f"{path} has keys that no published number has: {', '.join(unknown)}")
        numbers.append(Published(**values))
    for note in notes:
        matches = [i for i, number in enumerate(numbers) if _has(number, note["at"])]
        if not matches:
            raise ValueError(f"{path} has a note for an unknown number: {note['at']}")
        for i in matches:
            text = "; ".join(filter(None, [numbers[i].note, note["note"]]))
            numbers[i] = replace(numbers[i], note=text)
    return tuple(numbers)


def _read_cells(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The keys and values of every number of a table."""
    columns, rows = content.pop("columns"), content.pop("rows")
    for row in rows:
        row_keys = {key: value for key, value in row.items() if key not in DATA_SETS}
        for data_set in row:
            if data_set not in DATA_SETS:
                continue
            for column, text in zip(columns, row[data_set], strict=False):  # some methods have no MAP@R
                mean, std = _parse_number(text)
                yield {**content, **row_keys, **column, "data_set": data_set, "mean": mean, "std": std}


def _has(number: Published, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(number, name) == value for name, value in wanted.items())


def _canonical(metric: str) -> str:
    return SAME_METRIC.get(metric, metric)


def _parse_number(text: float | str) -> tuple[float, float | None]:
    """Mean and std of 40.25, "40.40 ±0.15" or "62K"."""
    if not isinstance(text, str):
        return float(text), None
    if text.endswith("K"):
        return 1000 * float(text[:-1]), None
    mean, _, std = text.partition("±")
    return float(mean), float(std)
