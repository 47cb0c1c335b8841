"""The published numbers, to be printed beside ours: thesis Tables 3.1, 3.2, 3.3, 5.1, 5.2, 5.3 and 5.4.

The files in ``published/`` are laid out as the tables are, a line for each method and data set, so that they can be
compared with the pages. A value takes what stands with its column, its row and its table, in this order. Tables 3.1 and
5.1 come from different runs and are told apart by their protocols, fair-ccp and fair.

Reference: Y. Z. Gürbüz, thesis: chance-constrained programming in chapter 3, generalized sum pooling in chapter 5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lookalike.objectives import full_name
from lookalike.objectives.presets import DATA_SETS

FOLDER = Path(__file__).parent / "published"
TABLES = ("3.1", "3.2", "3.3", "5.1", "5.2", "5.3", "5.4")
THESIS = "thesis"

_SAME = {"P@1": "R@1"}  # of one nearest neighbour, precision and recall are the same figure


@dataclass(frozen=True)
class Published:
    """One number of a table, in percent (steps: a count)."""

    table: str
    method: str  # as printed, with the rows above that a "+GSP" continues
    data_set: str
    metric: str  # P@1, R@1, MAP@R or steps
    mean: float
    std: float | None = None
    protocol: str = ""
    backbone: str = ""
    size: int = 0  # of the embedding; 512 under fair evaluation is four models of 128 joined
    loss: str | None = None  # None: a method that is not built here
    pooling: str | None = None  # None: another paper's, not named
    zero_shot: bool = False  # in the tables "+GSP" is with it
    memory: bool = False  # XBM
    ccp: bool = False
    variant: str | None = None  # S, L, or S/L where the table does not say which; None: not named
    settings: dict[str, float] = field(default_factory=dict, hash=False)  # where a table varies them
    reported_by: str = THESIS  # another paper, where the thesis quotes it
    note: str | None = None  # what is doubtful about it

    def __str__(self) -> str:
        if self.metric == "steps":
            return f"{self.mean:,.0f}"
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


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
    """The published numbers with these keys, in the order of the tables; None where there is no published number.

    What is left out may be anything. ``metric`` P@1 finds R@1 too, which is the same. ``variant`` S or L also finds
    what was printed as S/L, and what has no variants. Name the protocol or the table: the same method differs between
    them.

    >>> [found] = published(table="5.1", data_set="cub", loss="c2", pooling="gsp", size=128, metric="MAP@R")
    >>> str(found), found.method
    ('21.53 ± 0.24', 'C2+GSP')
    >>> published(data_set="cub", pooling="netvlad") is None
    True
    """
    if table is not None and table not in TABLES:
        raise ValueError(f"table must be one of {', '.join(TABLES)}, got {table!r}")
    wanted: dict[str, Any] = {
        "data_set": data_set,
        "loss": full_name(loss) if loss is not None else None,
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
    wanted = {name: value for name, value in wanted.items() if value is not None}
    found = tuple(
        value
        for name in (TABLES if table is None else (table,))
        for value in read_table(name)
        if _has(value, wanted)
        and (metric is None or _SAME.get(metric, metric) == _SAME.get(value.metric, value.metric))
        and (variant is None or value.variant is None or variant in value.variant.split("/"))
    )
    return found or None


@cache
def read_table(name: str) -> tuple[Published, ...]:
    """Every number of a table, row by row."""
    path = FOLDER / f"table-{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    columns, rows, notes = content.pop("columns"), content.pop("rows"), content.pop("notes", [])
    known = {entry.name for entry in fields(Published)}
    values = []
    for row in rows:
        about = {key: value for key, value in row.items() if key not in DATA_SETS}
        for data_set in (key for key in row if key in DATA_SETS):
            for column, text in zip(columns, row[data_set], strict=False):  # MAP@R is not printed for every method
                keys = {**content, **about, **column}
                if unknown := set(keys) - known:
                    raise ValueError(f"{path} has keys that no published number has: {', '.join(sorted(unknown))}")
                mean, std = _number(text)
                values.append(Published(**keys, data_set=data_set, mean=mean, std=std))
    for note in notes:
        places = [i for i, value in enumerate(values) if _has(value, note["at"])]
        if not places:
            raise ValueError(f"{path} has a note on nothing: {note['at']}")
        for i in places:
            before = values[i].note
            values[i] = replace(values[i], note=note["note"] if before is None else f"{before}; {note['note']}")
    return tuple(values)


def _has(value: Published, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(value, name) == keys for name, keys in wanted.items())


def _number(text: float | str) -> tuple[float, float | None]:
    """40.25, "40.40 ±0.15" or "62K"."""
    if not isinstance(text, str):
        return float(text), None
    if text.endswith("K"):
        return 1000 * float(text[:-1]), None
    mean, _, std = text.partition("±")
    return float(mean), float(std)
