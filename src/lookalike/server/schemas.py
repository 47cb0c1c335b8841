"""JSON answers, for the OpenAPI document and for client authors."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from lookalike.index.items import Hit, Item

FILE_NAME = "the name of the file, without its folders"


class Health(BaseModel):
    """Answer of ``GET /healthz``."""

    status: Literal["ok"] = "ok"
    items: int | None = Field(description="number of items; null without a key where one is needed")
    model: str | None = Field(description="fingerprint of the model; null without a key where one is needed")


class IndexCard(BaseModel):
    """The index in ``GET /model``."""

    kind: str
    count: int
    backend: str


class ModelCard(BaseModel):
    """Answer of ``GET /model``."""

    name: str
    backbone: str
    pooling: str
    dim: int
    input_size: int
    distance: str
    trained_on: str | None
    classes: int | None
    steps: int | None
    figures: dict[str, float] | None = Field(description="metrics on held-out pictures from training, as fractions")
    fingerprint: str
    has_weights: bool = Field(description="whether /explain works with this model")
    index: IndexCard


class LabelCount(BaseModel):
    """A label and the number of its items."""

    label: str
    count: int


class Labels(BaseModel):
    """Answer of ``GET /labels``."""

    labels: list[LabelCount]


class OneItem(BaseModel):
    """An item without its path, which is private."""

    id: str
    label: str
    name: str = Field(description=FILE_NAME)
    metadata: dict[str, Any]

    @classmethod
    def of(cls, item: Item) -> "OneItem":
        """Convert an item of the index."""
        return cls(id=item.id, label=item.label, name=name_of(item), metadata=item.metadata)


class Items(BaseModel):
    """Answer of ``GET /items``."""

    items: list[OneItem]
    next: str | None = Field(description="the value of after for the next page; null at the end")


class Added(BaseModel):
    """Answer of ``POST /items``."""

    id: str
    created: bool = Field(description="false if the same file was there already: its label and metadata are replaced")


class Deleted(BaseModel):
    """Answer of ``DELETE /items/{id}``."""

    deleted: Literal[True] = True


class OneHit(OneItem):
    """An item and its distance from the query."""

    distance: float

    @classmethod
    def of_hit(cls, hit: Hit) -> "OneHit":
        """Convert a hit of the index."""
        return cls(**OneItem.of(hit.item).model_dump(), distance=hit.distance)


class Hits(BaseModel):
    """Answer of ``POST /search``."""

    hits: list[OneHit] = Field(description="nearest first, unless a re-ranking was asked for")
    took_ms: float


class Embedding(BaseModel):
    """Answer of ``POST /embed``."""

    vector: list[float]
    dim: int


class Weights(BaseModel):
    """Answer of ``POST /explain``."""

    rows: int
    columns: int
    weights: list[list[float]] = Field(description="rows x columns over the whole picture; they sum to 1")
    grid_rows: int = Field(description="rows of the pooling's grid, which covers what the model sees")
    grid_columns: int
    attributes: list[float] | None = Field(description="the share of each prototype, if the pooling has prototypes")


class Point(BaseModel):
    """A point of the map."""

    id: str
    x: float
    y: float
    label: str
    name: str = Field(description=FILE_NAME)


class Map(BaseModel):
    """Answer of ``GET /map``."""

    points: list[Point]
    sampled: bool = Field(description="whether these are only some of all items")
    method: Literal["pca"] = "pca"


def name_of(item: Item) -> str:
    """Return the file name of an item, without folders, in valid Unicode.

    Examples:
        >>> name_of(Item("a1", "/home/somebody/birds/wren.jpg")), name_of(Item("a1", ""))
        ('wren.jpg', 'a1.jpg')
    """
    file_name = item.path.rpartition("/")[2]
    if not file_name:
        return f"{item.id}.jpg"
    return file_name.encode("utf-8", "replace").decode()
