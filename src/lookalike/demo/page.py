"""The page of the demo: heat maps, nearest neighbours, the embedding in the plane, and learning curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lookalike.demo.pictures import Shots
from lookalike.demo.training import BACKBONE, DIM, LEARNT_SHARE, Budget, Outcome
from lookalike.report import html
from lookalike.report.tables import Table
from lookalike.report.theme import FAINT, as_bytes, figure, styles, theme
from lookalike.retrieval.search import neighbours

if TYPE_CHECKING:
    from lookalike.demo.parallel import Selection

WARNING = "--quick: this shows that everything runs; the figures mean nothing."
PICTURES = 8  # with heat maps
QUERIES, NEIGHBOURS = 4, 6
CLASSES_IN_THE_PLANE = 10
RIGHT, WRONG = "#2b8a3e", "#c92a2a"
OUTLINE = (("white", 2.6), ("#D55E00", 1.2))  # one line over the other: visible on black, and without colour


def outline_cell(panel: Any, cell: int, side: int) -> None:
    """Draw a thin line around one cell of 2 x 2."""
    from matplotlib.patches import Rectangle

    down, right = divmod(int(cell), 2)
    inset = side / 64  # so that the line is inside
    corner = (right * side / 2 - 0.5 + inset, down * side / 2 - 0.5 + inset)
    edge = side / 2 - 2 * inset
    for colour, width in OUTLINE:
        panel.add_patch(Rectangle(corner, edge, edge, fill=False, edgecolor=colour, linewidth=width))


class Story(NamedTuple):
    """Everything that the page shows.

    Attributes:
        results: Every contestant with its best learning rate.
        outcomes: All runs.
        test: The test pictures.
        budget: Size of the demo.
        seconds: How long it took.
        table: The table of results.
        is_quick: The figures mean nothing.
    """

    results: list[Selection]
    outcomes: list[Outcome]
    test: Shots
    budget: Budget
    seconds: float
    table: Table
    is_quick: bool = False


def make_page(story: Story) -> str:
    """Render the page as one HTML document without links to other files."""
    blocks = []
    if story.is_quick:
        blocks.append(html.paragraph(WARNING))
    blocks.append(
        html.paragraph(
            "Every picture shows one letter, its class, among three symbols, which mean nothing. A network is trained "
            "to put pictures of the same letter close together. It is tested on unseen letters among unseen symbols. "
            "Average pooling makes one vector of the whole picture, symbols included. Generalized sum pooling (GSP) "
            "learns which local features to keep."
        )
    )
    blocks.append(story.table.html())
    if not story.is_quick:
        blocks.append(html.paragraph(_verdict(story)))
    blocks.append(html.heading("Where the weights lie"))
    blocks.append(
        html.picture(
            heat_maps(story),
            "jpeg",
            "Test pictures, and the weights of each pooling; the letter's cell is outlined",
            "Test pictures and the pooling weights of their positions, from none (white) to the largest of the picture "
            "(black). Outlined is the cell that shows the letter, where all the weight should lie. Only the oracle is "
            f"given that cell. Seed {story.budget.seeds[0]}, as for neighbours and embedding below.",
            large=True,
        )
    )
    blocks.append(html.heading("Nearest neighbours"))
    for selection in story.results:
        name = selection.contestant.name
        blocks.append(
            html.picture(
                neighbour_pictures(story, selection),
                "jpeg",
                f"Queries and their nearest neighbours under {name}",
                f"{name}: a query (left, its letter outlined) and its nearest neighbours. Tick and green frame: the "
                "same letter. Cross and red frame: another letter.",
            )
        )
    blocks.append(html.heading("The embedding"))
    classes = min(CLASSES_IN_THE_PLANE, story.budget.test_classes)
    blocks.append(
        html.picture(
            plane(story),
            "svg",
            "Test pictures of some classes in the plane, by t-SNE",
            f"Embeddings of {classes} unseen letters in the plane, by t-SNE; a colour and marker for each letter. "
            "Distances between far groups mean nothing in such a picture.",
            large=True,
        )
    )
    blocks.append(html.heading("Learning curves"))
    seeds = len(story.budget.seeds)
    averaged = "one seed." if seeds == 1 else f"mean of {seeds} seeds, which are the thin lines."
    blocks.append(
        html.picture(
            curves(story),
            "svg",
            "MAP@R on held-out classes over the steps of training",
            f"MAP@R on held-out training classes, with the learning rate that was best there; {averaged}",
            large=True,
        )
    )
    blocks += [html.heading("Settings"), html.pairs(_settings(story))]
    blocks.append(html.heading("With your own pictures"))
    blocks.append(
        html.code(
            "lookalike train my_pictures/ --out runs/mine      # my_pictures/CLASS/picture.jpg\n"
            "lookalike evaluate runs/mine other_pictures/"
        )
    )
    return html.document("lookalike: learn what looks alike", blocks)


def heat_maps(story: Story) -> bytes:
    """Draw test pictures in the first row, then the weights of each contestant, as JPEG."""
    chosen = _spread_out(len(story.test.labels), PICTURES)
    rows = 1 + len(story.results)
    with theme():
        drawn, axes = figure(1.25 * PICTURES + 2.2, 1.28 * rows, rows, PICTURES)
        for column, index in enumerate(chosen):
            _show(axes[column], story.test.pixels[index])
            outline_cell(axes[column], story.test.cells[index], story.test.pixels.shape[1])
        axes[0].set_ylabel("picture", rotation=0, ha="right", va="center")
        for row, selection in enumerate(story.results, 1):
            weights = selection.outcomes[0].weights[chosen]
            side = round(weights.shape[1] ** 0.5)
            for column, heat_map in enumerate(weights.reshape(-1, side, side)):
                axis = axes[row * PICTURES + column]
                _show(axis, heat_map, cmap="Greys", vmin=0, vmax=max(float(heat_map.max()), 1.5 / side**2))
                _frame(axis, FAINT, 0.8)
                outline_cell(axis, story.test.cells[chosen[column]], side)
            axes[row * PICTURES].set_ylabel(_wrapped(selection.contestant.name), rotation=0, ha="right", va="center")
        return as_bytes(drawn, "jpeg")


def neighbour_pictures(story: Story, selection: Selection) -> bytes:
    """Draw some queries and their nearest neighbours under one contestant, as JPEG."""
    vectors = torch.from_numpy(selection.outcomes[0].vectors)
    queries = _spread_out(len(vectors), QUERIES)
    nearest = neighbours(vectors[queries], vectors, NEIGHBOURS + 1).indices.numpy()
    with theme():
        drawn, axes = figure(0.85 * (NEIGHBOURS + 1), 0.92 * QUERIES, QUERIES, NEIGHBOURS + 1)
        for row, query in enumerate(queries):
            others = nearest[row][nearest[row] != query][:NEIGHBOURS]
            panels = axes[row * (NEIGHBOURS + 1) :]
            _show(panels[0], story.test.pixels[query])
            outline_cell(panels[0], story.test.cells[query], story.test.pixels.shape[1])
            for column, other in enumerate(others, 1):
                _show(panels[column], story.test.pixels[other])
                if story.test.labels[other] == story.test.labels[query]:
                    _mark(panels[column], RIGHT, "✓")
                else:
                    _mark(panels[column], WRONG, "✗")
        return as_bytes(drawn, "jpeg")


def plane(story: Story) -> bytes:
    """Draw embeddings of some test classes in the plane, by t-SNE, as SVG."""
    from sklearn.manifold import TSNE

    chosen = np.flatnonzero(story.test.labels < CLASSES_IN_THE_PLANE)
    labels = story.test.labels[chosen]
    selections = []
    for selection in story.results:
        if not (selection.contestant.zero_shot or selection.contestant.is_told):
            selections.append(selection)
    perplexity = max(1, min(15, (len(chosen) - 1) // 3))
    with theme():
        drawn, axes = figure(4.6 * len(selections), 4.6, 1, len(selections))
        looks = styles([f"letter {label}" for label in range(CLASSES_IN_THE_PLANE)])
        for axis, selection in zip(axes, selections, strict=True):
            tsne = TSNE(perplexity=perplexity, init="pca", random_state=0)
            points = tsne.fit_transform(selection.outcomes[0].vectors[chosen])
            for label, style in enumerate(looks.values()):
                x, y = points[labels == label].T
                axis.scatter(x, y, s=28, c=style.colour, marker=style.marker, edgecolors="white", linewidths=0.5)
            axis.set_title(selection.contestant.name)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(visible=False)
        return as_bytes(drawn, "svg")


def curves(story: Story) -> bytes:
    """Draw MAP@R on held-out classes over the steps, as SVG."""
    names = {selection.contestant.name: _style_name(selection) for selection in story.results}
    with theme():
        drawn, axes = figure(9, 4.8)
        looks = styles(names.values())
        for selection in story.results:
            style = looks[names[selection.contestant.name]]
            points = np.array([outcome.curve for outcome in selection.outcomes])  # (seeds, evaluations, 2)
            steps, values = points[0, :, 0], 100 * points[:, :, 1]
            axes[0].plot(steps, values.T, color=style.colour, alpha=0.3, linewidth=0.8)
            axes[0].plot(
                steps,
                values.mean(0),
                color=style.colour,
                marker=style.marker,
                linestyle=style.line,
                label=selection.contestant.name,
            )
        axes[0].set_xlabel("training steps")
        axes[0].set_ylabel("MAP@R on held-out classes, %")
        axes[0].set_ylim(bottom=0)
        axes[0].legend(loc="upper left")
        return as_bytes(drawn, "svg")


def _verdict(story: Story) -> str:
    average, gsp, _, attention, oracle = (100 * selection.mean("MAP@R") for selection in story.results)
    gain = gsp - average
    text = f"GSP is {_signed(gain)} average pooling"
    if oracle > average and gain > 0:
        text += f"; that is {gain / (oracle - average):.0%} of the way to the oracle, which pools only the true cell"
    text += f". Learnt attention is {_signed(attention - gsp)} GSP here. "
    return text + f"This is after {story.budget.steps} steps of training; docs/results has other runs."


def _signed(difference: float) -> str:
    direction = "ahead of" if difference > 0 else "behind"
    return f"{abs(difference):.1f} points of MAP@R {direction}"


def _settings(story: Story) -> dict[str, Any]:
    budget = story.budget
    positions = story.results[0].outcomes[0].weights.shape[1]
    return {
        "data": f"glyphs: {budget.train_classes} training letters (a quarter held out to choose the learning rate) and "
        f"{budget.test_classes} other letters for the test, {budget.pictures} pictures each; no symbol is in both",
        "network": f"{BACKBONE}, {positions} positions, {DIM}-D; pretrained with {budget.letter_steps} steps of "
        "classifying single letters, once per seed, on all training letters, also the quarter that is held out later",
        "GSP": _gsp_settings(),
        "choice of these settings": "in earlier runs of this comparison, with metrics of held-out and of test classes "
        "in view (docs/results), so the metrics here may flatter GSP",
        "training": f"{budget.steps} steps of {budget.classes} letters with {budget.per_class} pictures each, Adam, "
        "contrastive loss (C2)",
        "learning rates tried": ", ".join(f"{rate:g}" for rate in budget.rates),
        "seeds": f"{', '.join(map(str, budget.seeds))}; each seed has its own pretrained network, from which all "
        "poolings start, and its own batches of the same pictures",
        "runs": len(story.outcomes),
        "time": f"{story.seconds / 60:.1f} minutes in total",
        "torch": torch.__version__,
    }


def _gsp_settings() -> str:
    settings = LEARNT_SHARE.settings
    return (
        f"{settings['num_prototypes']} prototypes; keep {settings['keep']:g} and sharpness {settings['sharpness']:g} "
        f"at the start, both learnt; radius {settings['radius']:g}; its parameters at "
        f"{LEARNT_SHARE.pooling_rate:g} times the learning rate; local features start with a median length of "
        f"{LEARNT_SHARE.median_norm:g}, as for the other poolings"
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


def _style_name(selection: Selection) -> str:
    """Name by which plots choose colours, so that they are the same everywhere."""
    if selection.contestant.is_told:
        return "oracle"
    name = selection.contestant.pooling
    if selection.contestant.zero_shot:
        name += " + zero-shot"
    return name
