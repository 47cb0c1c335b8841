"""A person who marks the pictures of an index by their folder."""

from pathlib import Path

import numpy as np

from lookalike import index
from lookalike.index.contents import marked_pictures
from lookalike.index.marks import Marks


def mark(path: Path, queries: int = 12, k: int = 8) -> int:
    """Mark the nearest pictures of some queries by their folder; return the number of different pairs."""
    pairs = set()
    with index.open(path) as idx, Marks(path) as marks:
        ids = [item.id for item in sorted(idx.items(), key=lambda item: item.path)]  # ids depend on the folder
        for item in np.random.default_rng(0).permutation(np.array(ids))[:queries].tolist():
            hits = idx.search(idx.vectors([item]), k + 1)[0]
            others = [hit.item.id for hit in hits if hit.item.id != item][:k]
            query, *results = marked_pictures(idx, [item, *others])
            for result in results:
                same = Path(query.path).parent == Path(result.path).parent
                marks.add(query, result, "same" if same else "different")
                pairs.add(frozenset((query.content, result.content)))
    return len(pairs)
