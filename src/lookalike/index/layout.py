"""Layouts of a map: vectors -> points in the unit square, similar ones close together.

    umap    keeps neighbours together; needs umap-learn (the extra ``map``)
    tsne    keeps neighbours together, slowly; scikit-learn
    pca     two principal components: fast, but neighbours may lie on top of strangers

Reference: McInnes, Healy, Melville, "UMAP: Uniform Manifold Approximation and Projection for Dimension Reduction",
arXiv 2018.
"""

from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lookalike.index.kinds import load_faiss
from lookalike.index.projection import into_unit_square, principal_components, project

Method = Literal["umap", "tsne", "pca"]
Choice = Literal["auto", "umap", "tsne", "pca"]
Progress = Callable[[float], None]
Points = NDArray[np.float64]

LEAST = 100  # pictures; for fewer, two principal components say as much
QUICK_TSNE = 2000  # pictures up to which t-SNE is done before UMAP has compiled its loops
MOST_TSNE = 5000  # pictures that t-SNE arranges in about a minute
COMPONENTS = 64  # principal components that neighbours are looked for in
NEIGHBOURS = 15
MIN_DISTANCE = 0.1  # of neighbours on the map
EXACT = 20_000  # vectors up to which all pairs are compared
QUERIES = 2048  # per report of progress
NEIGHBOUR_SHARE = 0.25  # of the time, for the progress
PERPLEXITY = 30.0
INITIAL_EXTENT = 10.0  # of the principal components that UMAP starts from
TSNE_START = 1e-4  # standard deviation of the same for t-SNE
SEED = 0


def resolve_method(choice: Choice, count: int) -> Method:
    """Choose the layout for ``count`` vectors.

    Raises:
        ValueError: If UMAP is asked for and not installed.

    Examples:
        >>> resolve_method("auto", 99), resolve_method("tsne", 200)
        ('pca', 'tsne')
    """
    if choice not in get_args(Choice):
        raise ValueError(f"the layout of the map must be one of {', '.join(get_args(Choice))}, got {choice!r}")
    if choice == "umap" and not has_umap():
        raise ValueError("the layout umap needs umap-learn: pip install 'lookalike[map]'")
    if choice == "pca" or count < LEAST:
        return "pca"
    if choice != "auto":
        return choice
    if count <= QUICK_TSNE:
        return "tsne"
    if has_umap():
        return "umap"
    return "tsne" if count <= MOST_TSNE else "pca"


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    return find_spec("umap") is not None


def describe(method: Method, count: int) -> str:
    """Say in one line what a layout shows."""
    if method == "umap":
        return "neighbours lie close together (UMAP)"
    if method == "tsne":
        return "neighbours lie close together (t-SNE)"
    if count < LEAST or has_umap():
        return "two principal components"
    return "two principal components; pip install 'lookalike[map]' for a layout that keeps neighbours together"


def arrange(vectors: NDArray[np.float32], method: Method, progress: Progress = lambda _: None) -> Points:
    """Compute a layout. Equal vectors give equal points.

    Args:
        vectors: Vectors (n, D); where the distance is the cosine, of length 1.
        method: The method.
        progress: Called with the share that is done, from 0 to 1.

    Returns:
        Points (n, 2) in [0, 1].
    """
    if method == "pca":
        return project(vectors)
    reduced = vectors
    if vectors.shape[1] > COMPONENTS:
        reduced = principal_components(vectors, COMPONENTS).astype(np.float32)
    start = project(vectors) - 0.5
    points = _tsne(reduced, start) if method == "tsne" else _umap(reduced, start, progress)
    progress(1.0)
    return into_unit_square(points)


def nearest_neighbours(
    vectors: NDArray[np.float32], count: int, progress: Progress = lambda _: None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the nearest vectors of every vector, itself first.

    Args:
        vectors: Vectors (n, D). All pairs of up to ``EXACT`` are compared; of more, those in the nearest lists.
        count: Number of neighbours, with the vector itself.
        progress: Called with the share that is done.

    Returns:
        Indices and Euclidean distances, (n, count) each.
    """
    faiss = load_faiss()
    vectors = np.ascontiguousarray(vectors, np.float32)
    index = faiss.IndexFlatL2(vectors.shape[1])
    if len(vectors) > EXACT:
        lists = int(4 * np.sqrt(len(vectors)))
        index = faiss.IndexIVFFlat(index, vectors.shape[1], lists)
        index.train(vectors)
        index.nprobe = max(8, lists // 64)
    index.add(vectors)
    search = getattr(index, "search_numpy", index.search)  # as in kinds.py
    squared, indices = [], []
    for start in range(0, len(vectors), QUERIES):
        some_squared, some_indices = search(vectors[start : start + QUERIES], count)
        squared.append(some_squared)
        indices.append(some_indices)
        progress(min(1.0, (start + QUERIES) / len(vectors)))
    all_indices = np.concatenate(indices).astype(np.int64)
    all_distances = np.sqrt(np.concatenate(squared).clip(0))
    return _with_itself_first(all_indices, all_distances)


def _with_itself_first(
    indices: NDArray[np.int64], distances: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Copies of a vector have the distance 0, too, and may hide it; lists may have too few vectors (-1)."""
    own = np.arange(len(indices))
    for row in np.flatnonzero(indices[:, 0] != own):
        place = np.flatnonzero(indices[row] == row)
        last = int(place[0]) if len(place) else indices.shape[1] - 1
        indices[row, 1 : last + 1] = indices[row, :last].copy()
        distances[row, 1 : last + 1] = distances[row, :last].copy()
        indices[row, 0], distances[row, 0] = row, 0
    missing = indices < 0
    indices[missing] = np.broadcast_to(own[:, None], indices.shape)[missing]
    distances[missing] = distances[~missing].max(initial=0)
    return indices, distances


def _umap(vectors: NDArray[np.float32], start: Points, progress: Progress) -> Points:
    from umap import UMAP

    neighbours = min(NEIGHBOURS, len(vectors) - 1)
    found = nearest_neighbours(vectors, neighbours, lambda share: progress(NEIGHBOUR_SHARE * share))
    epochs = 500 if len(vectors) <= 10_000 else 200
    model = UMAP(
        n_neighbors=neighbours,
        min_dist=MIN_DISTANCE,
        n_epochs=epochs,
        init=(INITIAL_EXTENT * start).astype(np.float32),
        precomputed_knn=(*found, None),
        random_state=SEED,
        n_jobs=1,
        transform_seed=SEED,
        verbose=True,  # without it there is no progress
        tqdm_kwds={"file": _Epochs(epochs, progress), "bar_format": "{n}\n", "mininterval": 0, "miniters": 1},
    )
    with redirect_stdout(StringIO()):
        points: Points = model.fit_transform(vectors).astype(np.float64)
    return points


class _Epochs:
    """A file to which tqdm writes the number of finished epochs."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total = total
        self.progress = progress

    def write(self, text: str) -> None:
        for word in text.split():
            if word.isdigit():
                share = min(1.0, int(word) / self.total)
                self.progress(NEIGHBOUR_SHARE + (1 - NEIGHBOUR_SHARE) * share)

    def flush(self) -> None:
        pass


def _tsne(vectors: NDArray[np.float32], start: Points) -> Points:
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    scaled: Any = start / max(float(start.std()), 1e-12) * TSNE_START
    model = TSNE(perplexity=perplexity, init=scaled.astype(np.float32), random_state=SEED, n_jobs=1)
    points: Points = model.fit_transform(vectors).astype(np.float64)
    return points
