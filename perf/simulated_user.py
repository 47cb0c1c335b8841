"""A simulated user answers marks with the labels of pictures; MAP@R after improving with more and more marks.

    python perf/simulated_user.py FOLDER --marks 0 50 100 200 400 --seeds 3 > lines.jsonl
    python perf/simulated_user.py --plot lines.jsonl docs/results/simulated-user.png

FOLDER has class folders that nothing was trained on. The pictures go into a whitening head without labels. Half of the
classes are marked: for a random picture of them, the user marks the ten nearest pictures as right or wrong. Compared
are, on the marked classes and on the classes without any marks:

    improved   lookalike.improve.learning; a quarter of the marks is held out, as always. A model that is worse on
               them is refused and changes nothing
    scratch    a random projection of the averaged features, trained with the same loss on the same marks
    rocchio    query-only feedback: a marked query is moved by its own marks, all other queries stay as they are

Prints one line of JSON for each seed and number of marks. ``--plot`` draws them and prints the table.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, normalize

from lookalike import data
from lookalike._util.files import replacing
from lookalike.improve.evidence import Evidence, split
from lookalike.improve.learning import learn
from lookalike.improve.report import decide
from lookalike.index.items import Item
from lookalike.index.querying import compose_query
from lookalike.inference.model import untrained
from lookalike.models import Head, whitening
from lookalike.report import theme
from lookalike.retrieval import retrieval_metrics

RESULTS = 10  # marked for each query
WAYS = {"improved": "improved", "scratch": "from scratch", "rocchio": "Rocchio, queries only"}
COLOURS = ("#0072B2", "#D55E00", "#009E73")
PARTS = {"marked": "classes with marks", "others": "classes without marks"}
CHUNK = 64

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


class Vectors:
    """Vectors in memory as inputs of ``learn``; the head is a linear map of them."""

    batch = (128, 64, 192)

    def __init__(self, vectors: Floats, start: Floats, dim: int) -> None:
        self.vectors, self.start = vectors, start
        self.head = Head(vectors.shape[1], dim, "average")

    def read(self, positions: Integers) -> Tensor:
        """Read inputs (b, 1, C)."""
        return torch.from_numpy(self.vectors[positions]).unsqueeze(1)

    @torch.no_grad()
    def all_vectors(self) -> Floats:
        """Compute all vectors with the head as it is now."""
        vectors: Floats = self.head.eval()(torch.from_numpy(self.vectors).unsqueeze(1)).numpy()
        return vectors


def averages(folder: str) -> tuple[Floats, Integers]:
    """Averaged local features (n, C) of all pictures, from the feature cache, and their labels."""
    pictures = data.load(folder, check=False)
    cache = untrained("efficientnet_lite0", device="cpu").open_cache()
    cache.fill(cache.missing([(pictures, 1)]), workers=0, tick=lambda _: None)
    cache.store.refresh()
    rows = cache.rows(pictures)
    parts = [cache.read(rows[first : first + CHUNK]).mean(1) for first in range(0, len(rows), CHUNK)]
    return torch.cat(parts).numpy(), pictures.labels


def simulate(vectors: Floats, labels: Integers, marked: Integers, count: int, seed: int) -> tuple[Integers, Integers]:
    """Mark the nearest pictures of random queries; returns pairs (m, 2) and the queries."""
    candidates = np.flatnonzero(np.isin(labels, marked))
    queries = np.random.default_rng(seed).permutation(candidates)[: count // RESULTS]
    pairs = []
    for query in queries.tolist():
        similarities = vectors @ vectors[query]
        similarities[query] = -np.inf
        nearest = np.argsort(-similarities)[:RESULTS]
        pairs += [(query, int(result)) for result in nearest]
    return np.array(pairs, np.int64).reshape(-1, 2), queries


def rocchio(vectors: Floats, pairs: Integers, same: NDArray[np.bool_], queries: Integers) -> Floats:
    """The queries (n, D) of all pictures, those with marks moved by them."""
    moved = vectors.copy()
    for query in queries.tolist():
        own = pairs[:, 0] == query
        liked = np.concatenate([[query], pairs[own & same, 1]])
        moved[query] = compose_query(vectors[liked], vectors[pairs[own & ~same, 1]])
    return moved


def measure(
    name: str, vectors: Floats, queries: Floats | None, labels: Integers, is_marked: NDArray[np.bool_]
) -> dict[str, float]:
    """MAP@R in percent of pictures of marked classes and of the others, each searched among all pictures."""
    values = {}
    for part, chosen in (("marked", is_marked), ("others", ~is_marked)):
        positions = np.flatnonzero(chosen)
        asked = vectors if queries is None else queries
        metrics = retrieval_metrics(
            asked[positions],
            labels[positions],
            vectors,
            labels,
            query_ids=positions,
            reference_ids=np.arange(len(labels)),
        )
        values[f"{name} {part}"] = 100 * metrics["MAP@R"]
    return values


def summarise(lines: list[dict[str, float]]) -> dict[str, list[tuple[int, float, float]]]:
    """Gain over the start, mean and standard deviation over the seeds: curve -> (marks, mean, deviation)."""
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for count in sorted({int(line["marks"]) for line in lines}):
        of_count = [line for line in lines if line["marks"] == count]
        for way in WAYS:
            for part in PARTS:
                name = f"{way} {part}"
                key = name if count else f"start {part}"
                if count or way != "scratch":  # without marks the others are the start
                    values = np.array([line[key] - line[f"start {part}"] for line in of_count])
                    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
                    curves.setdefault(name, []).append((count, float(values.mean()), spread))
    return curves


def plot(lines: list[dict[str, float]], path: Path) -> None:
    """Draw the gain in MAP@R over the number of marks, and print it. Each seed marks other classes."""
    curves = summarise(lines)
    with theme.theme():
        drawn, panels = theme.figure(9.0, 3.8, columns=2)
        for panel, part in zip(panels, PARTS, strict=True):
            for (way, title), marker, line, colour in zip(
                WAYS.items(), theme.MARKERS, theme.LINES, COLOURS, strict=False
            ):
                points = curves[f"{way} {part}"]
                counts, means, spreads = zip(*points, strict=True)
                panel.errorbar(
                    counts, means, spreads, label=title, marker=marker, linestyle=line, color=colour, capsize=3
                )
            panel.set(xlabel="marks", ylabel="gain in MAP@R, points", title=PARTS[part])
        panels[0].legend()
    with replacing(path) as unfinished:
        unfinished.write_bytes(theme.as_bytes(drawn, path.suffix.lower().removeprefix(".")))
    for count in sorted({int(line["marks"]) for line in lines} - {0}):
        of_count = [line for line in lines if line["marks"] == count]
        print(f"{count} marks: {sum(line['installed'] for line in of_count):g} of {len(of_count)} models installed")
    for name, points in curves.items():
        print(name, " ".join(f"{count}: {mean:+.2f} ± {spread:.2f}" for count, mean, spread in points))


def main() -> None:
    """Run all seeds and numbers of marks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("LINES", "PICTURE"))
    parser.add_argument("--marks", type=int, nargs="+", default=[0, 50, 100, 200, 400])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.plot:
        lines = [json.loads(line) for line in options.plot[0].read_text().splitlines()]
        plot(lines, options.plot[1])
        return
    if not options.folder:
        parser.error("FOLDER is missing")
    torch.set_num_threads(1)
    features, labels = averages(options.folder)
    head = whitening(torch.from_numpy(features))
    start: Floats = normalize(linear(torch.from_numpy(features), head.weight, head.bias)).numpy()
    units: Floats = normalize(torch.from_numpy(features - features.mean(0))).numpy()
    items = [Item(f"i{number:06d}", "") for number in range(len(labels))]
    no_labels = np.full(len(labels), -1)
    classes = int(labels.max()) + 1
    for seed in range(options.seeds):
        marked = np.random.default_rng(seed).permutation(classes)[: classes // 2]
        is_marked = np.isin(labels, marked)
        at_the_start = measure("start", start, start, labels, is_marked)
        for count in options.marks:
            pairs, queries = simulate(start, labels, marked, count, seed)
            same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
            values = dict(at_the_start)
            if count:
                evidence = Evidence(items, [""] * len(items), [], no_labels, [], pairs, same)
                inputs = Vectors(start, start, start.shape[1])
                assert inputs.head.projection is not None
                torch.nn.init.eye_(inputs.head.projection.weight)
                learnt = learn(inputs, evidence, split(evidence), distance="cosine", seed=seed)  # type: ignore[arg-type]
                installed = decide(learnt.before, learnt.after)[0]
                values |= measure("improved", inputs.all_vectors() if installed else start, None, labels, is_marked)
                values |= {"AUROC before": learnt.before.auroc, "AUROC after": learnt.after.auroc}
                values["installed"] = installed
                values["share"] = learnt.share if installed else 0.0
                torch.manual_seed(seed)
                fresh = Vectors(units, np.ones((len(units), 1), np.float32), start.shape[1])
                learn(fresh, evidence, split(evidence), distance="cosine", seed=seed, kept=0.0)  # type: ignore[arg-type]
                values |= measure("scratch", fresh.all_vectors(), None, labels, is_marked)
                values |= measure("rocchio", start, rocchio(start, pairs, same, queries), labels, is_marked)
            rounded = {name: round(float(value), 3) for name, value in values.items()}
            print(json.dumps({"seed": seed, "marks": count, **rounded}), flush=True)


if __name__ == "__main__":
    main()
