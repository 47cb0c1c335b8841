"""JSON answers, for the OpenAPI document and for client authors."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from lookalike.index.items import Item
from lookalike.index.marks_file import Mark
from lookalike.index.querying import Result

FILE_NAME = "the name of the file, without its folders"


class Alive(BaseModel):
    """Answer of ``GET /health``."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """Answer of ``GET /ready``."""

    status: Literal["ready"] = "ready"
    writes: bool = Field(description="whether additions and deletions are accepted here")


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
    view: Literal["whole", "crop"] = Field(description="whether the whole picture is seen or only its centre")
    distance: str
    trained_on: str | None
    classes: int | None
    steps: int | None
    figures: dict[str, float] | None = Field(description="metrics on held-out pictures from training, as fractions")
    baseline: dict[str, float] | None = Field(description="the same for the backbone alone, before training")
    fingerprint: str
    has_weights: bool = Field(description="whether /explain works with this model")
    can_match: bool = Field(description="whether /match works with this model")
    text_refusal: str | None = Field(description="why this model cannot search by text; null if it can")
    calibration: str | None = Field(description="where probabilities come from; null if there are none")
    may_write: bool = Field(description="whether this key may add, delete, mark and label")
    models: list[str] = Field(description="names of all models of the index, the first one first")
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
    probability: float | None = Field(description="that it is the same; null without a calibration")
    duplicates: list[OneItem] = Field(description="near-duplicates, with group=true")
    mark: int | None = Field(default=None, description="number of the last mark on this result and the query")
    verdict: Literal["same", "different", "skip"] | None = Field(default=None, description="of this mark")

    @classmethod
    def of_result(cls, result: Result, mark: Mark | None = None) -> "OneHit":
        """Convert a result of a search."""
        return cls(
            **OneItem.of(result.hit.item).model_dump(),
            distance=result.hit.distance,
            probability=result.probability,
            duplicates=[OneItem.of(item) for item in result.duplicates],
            mark=None if mark is None else mark.number,
            verdict=None if mark is None else mark.verdict,
        )


class Hits(BaseModel):
    """Answer of ``POST /search``."""

    hits: list[OneHit] = Field(description="nearest first, unless a re-ranking was asked for")
    nothing: bool = Field(description="whether nothing here looks the same, by a test with the error rate")
    p_value: float | None = Field(description="of that test; null without a calibration")
    calibration: str = Field(description="where the probabilities come from, or why there are none")
    place: list[float] | None = Field(
        description="x and y on the map: the median of the five nearest; null without one"
    )
    left_out: int = Field(description="number of items that are the uploaded picture itself and were left out")
    took_ms: float


class MetadataField(BaseModel):
    """A metadata field, for filters."""

    key: str
    least: float | None = Field(description="smallest value if all values are numbers")
    most: float | None
    values: list[str] = Field(description="the most frequent texts")


class MetadataFields(BaseModel):
    """Answer of ``GET /fields``."""

    fields: list[MetadataField]


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


class MatchGrid(BaseModel):
    """The cells of one of the two pictures in ``POST /match``."""

    rows: int
    columns: int
    box: list[float] = Field(description="left, top, width, height of the grid, as fractions of the picture")


class MatchedRegion(BaseModel):
    """Places of two pictures that match each other."""

    share: float = Field(description="of the cosine: the pairs inside this region")
    cells_a: list[int] = Field(description="cells of the query, counted row by row")
    cells_b: list[int]


class Matched(BaseModel):
    """Answer of ``POST /match``."""

    cosine: float
    inside_share: float = Field(description="of the cosine: pairs off the outermost ring of cells in both pictures")
    inside_area: float = Field(description="the part of all pairs that lie there")
    regions: list[MatchedRegion]
    a: MatchGrid
    b: MatchGrid
    matrix: list[list[float]] = Field(description="cells of a x cells of b; the sum is the cosine")


class MapCluster(BaseModel):
    """A cluster of the map, named by the label of most of its items."""

    label: str
    x: float = Field(description="from 0 to 1, as y")
    y: float
    pictures: int
    share: float = Field(description="the part of the items with this label")


class Map(BaseModel):
    """Answer of ``GET /map``: one entry per item in ids, names, label, x and y."""

    revision: str = Field(description="changes whenever a point may have moved")
    method: Literal["umap", "tsne", "pca"]
    note: str = Field(description="what the layout shows, in one line")
    sampled: bool = Field(description="whether these are only some of all items")
    labels: list[str]
    ids: list[str]
    names: list[str] = Field(description=FILE_NAME)
    label: list[int] = Field(description="a position in labels")
    x: list[int] = Field(description="from 0 to 65,535, as y")
    y: list[int]
    clusters: list[MapCluster] = Field(description="the largest first")


class MapProgress(BaseModel):
    """Answer of ``GET /map/progress``."""

    revision: str = Field(description="as in GET /map; empty before the first map")
    method: Literal["umap", "tsne", "pca"]
    progress: float | None = Field(description="the part of a better layout that is computed; null if none is")


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
