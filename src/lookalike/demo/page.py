"""The page of the demo: what the poolings look at, what they find, and how they came there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.demo.race import BACKBONE, DIM, LEARNT_SHARE, Budget, Outcome, Shots
from lookalike.report import html
from lookalike.report.tables import Table
from lookalike.report.theme import FAINT, as_bytes, figure, styles, theme
from lookalike.retrieval.search import neighbours

if TYPE_CHECKING:
    from lookalike.demo.races import Result

WARNING = "--quick: this shows that everything runs; the figures mean nothing."
PICTURES = 8  # with heat maps
QUERIES, FOUND = 4, 6
CLASSES_IN_THE_PLANE = 10
RIGHT, WRONG = "#2b8a3e", "#c92a2a"


OUTLINE = (("white", 2.6), ("#D55E00", 1.2))  # one line over the other: seen on black, and without colour


def outline_cell(panel: Any, cell: int, side: int) -> None:
    """A thin line around one cell of 2 x 2, in a picture or map of ``side`` x ``side``."""
    from matplotlib.patches import Rectangle

    down, right = divmod(int(cell), 2)
    inset = side / 64  # so that the line is inside
    corner = (right * side / 2 - 0.5 + inset, down * side / 2 - 0.5 + inset)
    edge = side / 2 - 2 * inset
    for colour, width in OUTLINE:
        panel.add_patch(Rectangle(corner, edge, edge, fill=False, edgecolor=colour, linewidth=width))


class Story(NamedTuple):
    results: list[Result]
    outcomes: list[Outcome]  # of all runs
    test: Shots
    budget: Budget
    seconds: float
    table: Table
    is_quick: bool = False  # whether the figures mean nothing


def make_page(story: Story) -> str:
    seeds = len(story.budget.seeds)
    parts = [
        *([html.paragraph(WARNING)] if story.is_quick else []),
        html.paragraph(
            "Every picture shows one letter, which is its class, among three symbols, which mean nothing. A network "
            "is trained to put "
            "pictures of the same letter close together, and is then asked for letters it has never seen, among "
            "symbols it has never "
            "seen. Average pooling makes one vector of the whole picture, symbols and all. Generalized sum pooling "
            "(GSP) learns "
            "which local features to keep."
        ),
        story.table.html(),
        *([] if story.is_quick else [html.paragraph(_verdict(story))]),
        html.heading("What they look at"),
        html.picture(
            heat_maps(story),
            "png",
            "Test pictures, and the weights that each pooling gives to their places; the letter's cell is outlined",
            "Test pictures and the pooling weights of their places, from none (white) to the largest of the picture "
            "(black): dark is much. Outlined is the cell that shows the letter, where all the weight should lie. No "
            f"pooling was ever told which cell that is, but for the oracle. Seed {story.budget.seeds[0]}, as for "
            "neighbours and embedding below.",
        ),
        html.heading("What they find"),
        *(
            html.picture(
                found(story, result),
                "png",
                f"Queries and their nearest neighbours under {result.contestant.name}",
                f"{result.contestant.name}: a query (left, its letter outlined) and its nearest neighbours; a tick and "
                "a green frame where the letter is the same, a cross and a red frame where it is not.",
            )
            for result in story.results
        ),
        html.heading("The embedding"),
        html.picture(
            plane(story),
            "svg",
            "Test pictures of some classes in the plane, by t-SNE",
            f"Pictures of {min(CLASSES_IN_THE_PLANE, story.budget.test_classes)} unseen letters, their vectors brought "
            "into the plane by t-SNE; a colour and marker for each letter. Distances between far groups mean nothing "
            "in such a picture.",
        ),
        html.heading("While they learnt"),
        html.picture(
            curves(story),
            "svg",
            "MAP@R on held-out classes over the steps of training",
            "MAP@R on held-out training classes, with the rate that was best there; "
            + ("one seed." if seeds == 1 else f"mean of {seeds} seeds, which are the thin lines."),
        ),
        html.heading("What was run"),
        html.pairs(_what_was_run(story)),
        html.heading("With your own pictures"),
        html.code(
            "lookalike train my_pictures/ --out runs/mine      # my_pictures/CLASS/picture.jpg\n"
            "lookalike evaluate runs/mine other_pictures/"
        ),
    ]
    return html.document("lookalike: learn what looks alike", parts)


def heat_maps(story: Story) -> bytes:
    """Pictures in the first row, then the weights of each contestant."""
    chosen = _spread_out(len(story.test.labels), PICTURES)
    rows = 1 + len(story.results)
    with theme():
        drawn, axes = figure(1.25 * PICTURES + 2.2, 1.28 * rows, rows, PICTURES)
        for column, which in enumerate(chosen):
            _show(axes[column], story.test.pixels[which])
            outline_cell(axes[column], story.test.cells[which], story.test.pixels.shape[1])
        axes[0].set_ylabel("picture", rotation=0, ha="right", va="center")
        for row, result in enumerate(story.results, 1):
            weights = result.outcomes[0].weights[chosen]
            side = round(weights.shape[1] ** 0.5)
            for column, map_of in enumerate(weights.reshape(-1, side, side)):
                axis = axes[row * PICTURES + column]
                _show(axis, map_of, cmap="Greys", vmin=0, vmax=max(float(map_of.max()), 1.5 / side**2))
                _frame(axis, FAINT, 0.8)
                outline_cell(axis, story.test.cells[chosen[column]], side)
            axes[row * PICTURES].set_ylabel(_wrapped(result.contestant.name), rotation=0, ha="right", va="center")
        return as_bytes(drawn, "png")


def found(story: Story, result: Result) -> bytes:
    vectors = torch.from_numpy(result.outcomes[0].vectors)
    queries = _spread_out(len(vectors), QUERIES)
    nearest = neighbours(vectors[queries], vectors, FOUND + 1).indices.numpy()
    with theme():
        drawn, axes = figure(0.85 * (FOUND + 1), 0.92 * QUERIES, QUERIES, FOUND + 1)
        for row, (query, others) in enumerate(zip(queries, nearest, strict=True)):
            shown = [query, *[other for other in others.tolist() if other != query][:FOUND]]
            for column, which in enumerate(shown):
                axis = axes[row * (FOUND + 1) + column]
                _show(axis, story.test.pixels[which])
                if not column:
                    outline_cell(axis, story.test.cells[which], story.test.pixels.shape[1])
                else:
                    right = story.test.labels[which] == story.test.labels[query]
                    _mark(axis, RIGHT if right else WRONG, "✓" if right else "✗")
        return as_bytes(drawn, "png")


def plane(story: Story) -> bytes:
    from sklearn.manifold import TSNE

    chosen = np.flatnonzero(story.test.labels < CLASSES_IN_THE_PLANE)
    labels = story.test.labels[chosen]
    shown = [each for each in story.results if not (each.contestant.zero_shot or each.contestant.is_told)]
    with theme():
        drawn, axes = figure(4.6 * len(shown), 4.6, 1, len(shown))
        looks = styles([f"letter {label}" for label in range(CLASSES_IN_THE_PLANE)])
        for axis, result in zip(axes, shown, strict=True):
            perplexity = max(1, min(15, (len(chosen) - 1) // 3))
            points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(
                result.outcomes[0].vectors[chosen]
            )
            for label, each in enumerate(looks.values()):
                own = points[labels == label]
                axis.scatter(
                    own[:, 0], own[:, 1], s=28, c=each.colour, marker=each.marker, edgecolors="white", linewidths=0.5
                )
            axis.set_title(result.contestant.name)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
        return as_bytes(drawn, "svg")


def curves(story: Story) -> bytes:
    names = {result.contestant.name: _as_pooling(result) for result in story.results}
    with theme():
        drawn, axes = figure(9, 4.8)
        looks = styles(names.values())
        for result in story.results:
            each = looks[names[result.contestant.name]]
            steps = [step for step, _ in result.outcomes[0].curve]
            values = 100 * np.array([[value for _, value in outcome.curve] for outcome in result.outcomes])
            axes[0].plot(steps, values.T, color=each.colour, alpha=0.3, linewidth=0.8)
            axes[0].plot(
                steps,
                values.mean(0),
                color=each.colour,
                marker=each.marker,
                linestyle=each.line,
                label=result.contestant.name,
            )
        axes[0].set_xlabel("training steps")
        axes[0].set_ylabel("MAP@R on held-out classes, %")
        axes[0].set_ylim(bottom=0)
        axes[0].legend(loc="upper left")
        return as_bytes(drawn, "svg")


def _verdict(story: Story) -> str:
    average, gsp, _, attention, oracle = story.results
    gain = 100 * (gsp.mean("MAP@R") - average.mean("MAP@R"))
    first, last = 100 * average.mean("MAP@R"), 100 * oracle.mean("MAP@R")
    text = f"GSP is {abs(gain):.1f} points of MAP@R {'ahead of' if gain > 0 else 'behind'} average pooling"
    if last > first and gain > 0:
        text += f"; that is {gain / (last - first):.0%} of the way to the oracle, which pools only the true cell"
        text += " because it is told where it is"
    text += ". "
    other = 100 * (attention.mean("MAP@R") - gsp.mean("MAP@R"))
    text += f"A plain learnt attention is {abs(other):.1f} points {'ahead of' if other > 0 else 'behind'} GSP here. "
    return text + f"All of this is after {story.budget.steps} steps of training; docs/results has other runs."


def _what_was_run(story: Story) -> dict[str, Any]:
    budget = story.budget
    places = story.results[0].outcomes[0].weights.shape[1]
    return {
        "data": f"glyphs: {budget.train_classes} training letters (a quarter held out to choose the rate by) and "
        f"{budget.test_classes} "
        f"other letters to test on, {budget.pictures} pictures each, no symbol in both",
        "network": f"{BACKBONE}, {places} places, {DIM}-D; before, {budget.letter_steps} steps of classifying single "
        "letters, once for each seed: all the training letters, also the quarter that is held out later to choose the "
        "rate by",
        "GSP": _gsp_settings(),
        "how these were chosen": "in earlier runs of this race, with figures of held-out and of test classes in view "
        "(docs/results), so GSP's figures here may flatter it",
        "training": f"{budget.steps} steps of {budget.classes} letters with {budget.per_class} pictures each, Adam, "
        f"contrastive loss (C2)",
        "rates tried": ", ".join(f"{rate:g}" for rate in budget.rates),
        "seeds": f"{', '.join(map(str, budget.seeds))}; a seed is network and batches both: each has its own network "
        "that has learnt letters, from which all poolings start, and its own batches of the same pictures",
        "runs": len(story.outcomes),
        "took": f"{story.seconds / 60:.1f} minutes in all",
        "torch": torch.__version__,
    }


def _gsp_settings() -> str:
    inside = LEARNT_SHARE.settings
    keep, sharpness = (
        f"{name} {inside[name]:g}" + (" at the start, learnt" if inside[f"learn_{name}"] else "")
        for name in ("keep", "sharpness")
    )
    return (
        f"{inside['num_prototypes']} prototypes; {keep}; {sharpness}; radius {inside['radius']:g}; its own parameters "
        f"at {LEARNT_SHARE.pooling_rate:g} times the rate; local features begin with a median length of "
        f"{LEARNT_SHARE.median_norm:g}, as those of the others"
    )


def _spread_out(count: int, wanted: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, wanted + 2)[1:-1].astype(np.int64)


def _show(axis: Any, picture: NDArray[Any], **how: Any) -> None:
    axis.imshow(picture, interpolation="nearest", **how)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)


def _frame(axis: Any, colour: str, width: float) -> None:
    for spine in axis.spines.values():
        spine.set_visible(True)
        spine.set_color(colour)
        spine.set_linewidth(width)


def _mark(axis: Any, colour: str, mark: str) -> None:
    _frame(axis, colour, 3)
    axis.text(
        0.06, 0.94, mark, transform=axis.transAxes, ha="left", va="top", color="white", fontsize=8,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": colour, "edgecolor": "none"},
    )  # fmt: skip


def _wrapped(name: str) -> str:
    return name.replace(", ", ",\n").replace(" + ", " +\n").replace("average pooling", "average\npooling")


def _as_pooling(result: Result) -> str:
    """What plots know it by, so that colours are the same everywhere."""
    if result.contestant.is_told:
        return "oracle"
    return result.contestant.pooling + (" + zero-shot" if result.contestant.zero_shot else "")
