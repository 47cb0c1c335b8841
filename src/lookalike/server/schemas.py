"""The answers, for the OpenAPI document and for those who write clients."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from lookalike.index.items import Hit, Item

FILE_NAME = "the name of the file, without its folders"


class Health(BaseModel):
    status: Literal["ok"] = "ok"
    items: int | None = Field(description="how many there are; null without a key where one is needed")
    model: str | None = Field(description="the fingerprint of the model; null without a key where one is needed")


class IndexCard(BaseModel):
    kind: str
    count: int
    backend: str


class ModelCard(BaseModel):
    name: str
    backbone: str
    pooling: str
    dim: int
    input_size: int
    distance: str
    trained_on: str | None
    classes: int | None
    steps: int | None
    figures: dict[str, float] | None = Field(description="measured on held-out pictures while training, as fractions")
    fingerprint: str
    has_weights: bool = Field(description="whether /explain has something to show")
    index: IndexCard


class LabelCount(BaseModel):
    label: str
    count: int


class Labels(BaseModel):
    labels: list[LabelCount]


class OneItem(BaseModel):
    id: str
    label: str
    name: str = Field(description=FILE_NAME)
    metadata: dict[str, Any]

    @classmethod
    def of(cls, item: Item) -> "OneItem":
        return cls(id=item.id, label=item.label, name=name_of(item), metadata=item.metadata)


class Items(BaseModel):
    items: list[OneItem]
    next: str | None = Field(description="the value of after for the next page; null at the end")


class Added(BaseModel):
    id: str
    created: bool = Field(description="false if the same file was there already: its label and metadata are replaced")


class Deleted(BaseModel):
    deleted: Literal[True] = True


class OneHit(OneItem):
    distance: float

    @classmethod
    def of_hit(cls, hit: Hit) -> "OneHit":
        return cls(**OneItem.of(hit.item).model_dump(), distance=hit.distance)


class Hits(BaseModel):
    hits: list[OneHit] = Field(description="nearest first, unless a re-ranking was asked for")
    took_ms: float


class Embedding(BaseModel):
    vector: list[float]
    dim: int


class Weights(BaseModel):
    rows: int
    columns: int
    weights: list[list[float]] = Field(description="rows x columns over the whole picture; they add up to 1")
    grid_rows: int = Field(description="of the pooling's own grid, which is spread over what the model sees")
    grid_columns: int
    attributes: list[float] | None = Field(description="the share of each prototype, where the pooling has some")


class Point(BaseModel):
    id: str
    x: float
    y: float
    label: str
    name: str = Field(description=FILE_NAME)


class Map(BaseModel):
    points: list[Point]
    sampled: bool = Field(description="whether these are only some of all items")
    method: Literal["pca"] = "pca"


def name_of(item: Item) -> str:
    """Never more than the last part of the path, in characters that can be sent.

    >>> name_of(Item("a1", "/home/somebody/birds/wren.jpg")), name_of(Item("a1", ""))
    ('wren.jpg', 'a1.jpg')
    """
    last = item.path.rpartition("/")[2]
    return last.encode("utf-8", "replace").decode() if last else f"{item.id}.jpg"
