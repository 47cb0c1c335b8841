"""The figures of the study ``average-pooling``."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon
from numpy.typing import NDArray
from scipy.spatial import Voronoi, voronoi_plot_2d
from torch import Tensor

from lookalike.report.theme import FAINT, INK, figure, theme
from lookalike_studies.average_pooling.maths import Network
from lookalike_studies.framework.plots import legend_below, set_plane, write_cells

POINTS = 6000  # local features that are drawn
PATCHES = 4  # of each prototype
PATCH = 12 / 64  # half the side of a patch, as a share of the picture's
PATCH_COLUMNS = 6
EXAMPLES = 3
MAPS = 5
REACH = 1.1  # of the plane; features lie in the unit disc
RED, BLUE, GREEN = "#D55E00", "#0072B2", "#009E73"
MARKERS = "os^Dv<>pPX"
LINES = ("-", "--", "-.", ":")


class Scene(NamedTuple):
    """The measured pictures and one network."""

    pixels: NDArray[np.uint8]  # (B, S, S, 3)
    labels: NDArray[np.int64]  # (B,)
    classes: Sequence[str]
    network: Network


def class_colours(count: int) -> list[Any]:
    """Choose an RGBA colour for each class."""
    if count <= 10:
        return [colormaps["tab10"](i) for i in range(count)]
    return [colormaps["hsv"](i / count) for i in range(count)]


def draw_partition(scene: Scene) -> Figure:
    """Draw local features, prototypes and their cells."""
    cover, points = scene.network.cover, scene.network.features.flatten(0, 1)
    prototypes = cover.prototypes.double().numpy()
    with theme():
        drawn, (panel,) = figure(9.5, 9)
        some = points[:: max(1, len(points) // POINTS)]
        panel.scatter(*some.T, s=2, color=BLUE, alpha=0.35, label="local features (some)")
        if len(np.unique(prototypes, axis=0)) > 3:
            far = 50 * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])  # so that all cells in sight are bounded
            cells = Voronoi(np.concatenate([prototypes, far]))
            voronoi_plot_2d(cells, panel, show_points=False, show_vertices=False, line_width=0.8)
        panel.scatter(*prototypes.T, s=28, color=RED, marker="s", zorder=4, label="prototypes")
        for number, position in enumerate(prototypes):
            panel.annotate(str(number), position, (4, 4), textcoords="offset points", fontsize=8, zorder=5)
        nearest = cover.mixtures.nearest.flatten()
        farthest = int(torch.linalg.vector_norm(points - cover.prototypes[nearest], dim=-1).argmax())
        dashed: Any = {"lw": 1.5, "ls": "--"}
        panel.add_patch(Circle(prototypes[nearest[farthest]], cover.radius, fill=False, ec=INK, zorder=6, **dashed))
        panel.plot([], [], color=INK, label=f"covering radius {cover.radius:.3f}, where it is reached", **dashed)
        set_plane(panel, REACH)
        drawn.legend(loc="outside lower center", ncols=3, markerscale=1.5)
    return drawn


def draw_patches(scene: Scene) -> Figure:
    """Draw the patches whose features lie nearest to each prototype, from different pictures."""
    features, prototypes = scene.network.features, scene.network.cover.prototypes
    strips = []
    for prototype in prototypes:
        patches = []
        for picture, position in nearest_positions(features, prototype):
            patches.append(cut_patch(scene.pixels[picture], position, features.shape[1]))
        strip = np.concatenate(patches, axis=1)
        strips.append(np.pad(strip, ((1, 1), (len(strip) // 2, 0), (0, 0)), constant_values=255))  # room for a number
    height, width = strips[0].shape[:2]
    rows = -(-len(strips) // PATCH_COLUMNS)
    sheet = np.full((rows * height, PATCH_COLUMNS * width, 3), 255, dtype=np.uint8)
    with theme():
        drawn, (panel,) = figure(13, 13 * rows * height / (PATCH_COLUMNS * width) + 0.3)
        for number, strip in enumerate(strips):
            row, column = divmod(number, PATCH_COLUMNS)
            top, left = row * height, column * width
            sheet[top : top + height, left : left + width] = strip
            panel.text(left + 0.36 * height, top + 0.5 * height, str(number), ha="right", va="center", fontsize=11)
        panel.imshow(sheet)
        panel.set_axis_off()
        panel.set_title("prototype, and the patches nearest to it")
    return drawn


def nearest_positions(features: Tensor, prototype: Tensor) -> list[tuple[int, int]]:
    """Find the features (B, n, d) nearest to a prototype (d,), no two in one picture, as (picture, position)."""
    distances, positions = torch.linalg.vector_norm(features - prototype, dim=-1).min(1)
    pictures = distances.argsort(stable=True)[:PATCHES].tolist()
    return [(picture, int(positions[picture])) for picture in pictures]


def cut_patch(pixels: NDArray[np.uint8], position: int, positions: int) -> NDArray[np.uint8]:
    """Cut a patch around one of the positions of a picture (S, S, 3), with a white edge on the right."""
    grid = round(positions**0.5)
    side = len(pixels)
    reach = int(PATCH * side)
    row, column = divmod(position, grid)
    top, left = (2 * row + 1) * side // (2 * grid), (2 * column + 1) * side // (2 * grid)  # in the padded picture
    padded = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    patch = padded[top : top + 2 * reach, left : left + 2 * reach]
    return np.pad(patch, ((0, 0), (0, 1), (0, 0)), constant_values=255)


def draw_hulls(scene: Scene) -> Figure:
    """Draw hulls of active prototypes with the averages (left), and the common area of two classes (right)."""
    cover = scene.network.cover
    with theme():
        drawn, (plane, matrix) = figure(15, 6.6, 1, 2)
        colours = class_colours(len(scene.classes))
        for label, (hull, colour) in enumerate(zip(cover.hulls, colours, strict=True)):
            line: Any = {"ec": colour, "lw": 2, "ls": LINES[label % len(LINES)]}
            plane.add_patch(Polygon(hull.numpy(), closed=True, fc=(*colour[:3], 0.06), **line))
            averages = cover.mixtures.average[torch.from_numpy(scene.labels == label)]
            marker: Any = {"s": 16, "marker": MARKERS[label % len(MARKERS)], "ec": INK, "lw": 0.2}
            plane.scatter(*averages.T, color=colour, label=f"{label} {scene.classes[label]}", **marker)
        plane.scatter(*cover.prototypes.T, s=12, color=INK, marker="s", label="prototypes")
        plane.set_title("hulls of active prototypes; points: averages of pictures")
        plane.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=1.4)
        set_plane(plane, REACH)
        _draw_shares(matrix, 100 * cover.overlap.shares.numpy(), scene.classes)
        drawn.colorbar(matrix.images[0], ax=matrix, shrink=0.8, label="% of the smaller hull")
    return drawn


def _draw_shares(panel: Any, shares: NDArray[np.float64], classes: Sequence[str]) -> None:
    count = len(classes)
    np.fill_diagonal(shares, np.nan)
    panel.imshow(shares, cmap="Greys", vmin=0, vmax=100)
    if count <= 12:
        texts = np.vectorize("{:.0f}".format, otypes=[object])(shares)
        np.fill_diagonal(texts, "")
        write_cells(panel, texts, shares > 55, fontsize=8)
    panel.set(xticks=range(count), xlabel="class", title="common area of two hulls")
    panel.set_yticks(range(count), [f"{label} {name}" for label, name in enumerate(classes)])
    panel.grid(visible=False)


def draw_mixtures(scene: Scene) -> Figure:
    """Draw single pictures: local features, the prototypes they use, average and mixture."""
    cover, mixtures = scene.network.cover, scene.network.cover.mixtures
    with theme():
        drawn, panels = figure(4.3 * EXAMPLES, 6.6, 2, EXAMPLES)
        for column, picture in enumerate(choose_examples(scene, EXAMPLES)):
            top, plane = panels[column], panels[EXAMPLES + column]
            top.imshow(scene.pixels[picture])
            top.set_axis_off()
            top.set_title(scene.classes[scene.labels[picture]])
            average = mixtures.average[picture]
            histogram = mixtures.histogram[picture]
            used = histogram > 0
            square: Any = {"fc": "none", "marker": "s"}
            cross: Any = {"color": INK, "lw": 2.2, "zorder": 5}
            plane.scatter(*scene.network.features[picture].T, s=8, color=BLUE, alpha=0.6, label="local features")
            plane.scatter(*cover.prototypes.T, s=10, ec=FAINT, **square)
            sizes = 20 + 600 * histogram[used]
            plane.scatter(
                *cover.prototypes[used].T, s=sizes, ec=RED, lw=1.3, label="prototypes, by their share", **square
            )
            plane.scatter(*average, s=130, marker="+", label="average (GAP)", **cross)
            plane.scatter(*mixtures.combination[picture], s=90, marker="x", label="mixture (PCC)", **cross)
            plane.add_patch(
                Circle((float(average[0]), float(average[1])), cover.radius, fill=False, ec=INK, ls="--", lw=1.2)
            )
            error = float(mixtures.error[picture])
            plane.set_title(f"apart by {error:.3f}, bound {cover.radius:.3f} (dashed)", fontsize=10)
            set_plane(plane, REACH)
        legend_below(drawn, panels[EXAMPLES], 4)
    return drawn


def choose_examples(scene: Scene, count: int) -> list[int]:
    """Choose the first picture of some classes, evenly spread."""
    chosen = np.linspace(0, len(scene.classes) - 1, count).round().astype(int)
    return [int(np.flatnonzero(scene.labels == label)[0]) for label in chosen]


def draw_bound(seeds: Sequence[int], networks: Sequence[Network]) -> Figure:
    """Draw every picture's error over its covering radius (left), and all errors below the radius of all features."""
    most = 1.1 * max(network.cover.radius for network in networks)
    with theme():
        drawn, (scatter, ordered) = figure(12, 4.8, 1, 2)
        for number, (seed, network) in enumerate(zip(seeds, networks, strict=True)):
            mixtures, radius = network.cover.mixtures, network.cover.radius
            colour, marker, line = (BLUE, RED, GREEN)[number % 3], "os^"[number % 3], LINES[number % 3]
            error = np.sort(mixtures.error.numpy())
            scatter.scatter(
                mixtures.radius, mixtures.error, s=8, color=colour, marker=marker, alpha=0.6, label=f"seed {seed}"
            )
            ordered.plot(np.arange(1, len(error) + 1), error, color=colour, ls=line, lw=2, label=f"seed {seed}: error")
            ordered.axhline(radius, color=colour, lw=1.4, ls=":", label=f"seed {seed}: covering radius {radius:.3f}")
        scatter.plot([0, most], [0, most], color=INK, lw=1, ls=":", label="bound")
        scatter.set(xlim=(0, most), ylim=(0, most), ylabel="||PCC - GAP|| of the picture")
        scatter.set_xlabel("covering radius over the features of the picture")
        ordered.set(xlabel="pictures, by their error", ylabel="||PCC - GAP||", ylim=(0, most))
        scatter.legend(loc="upper left")
        ordered.legend(loc="center left")
    return drawn


def draw_class_maps(scene: Scene) -> Figure:
    """Draw for some pictures the class with the highest score at each position, and the decision of the mean."""
    count = len(scene.classes)
    examples = choose_examples(scene, min(MAPS, count))
    colours = ListedColormap(class_colours(count))
    with theme():
        drawn, panels = figure(13, 5.4, 2, MAPS)
        for panel in panels:
            panel.set_axis_off()
        for column, picture in enumerate(examples):
            top, bottom, label = panels[column], panels[MAPS + column], scene.labels[picture]
            top.imshow(scene.pixels[picture])
            top.set_title(f"{label} {scene.classes[label]}", fontsize=11)
            scores = scene.network.layer(scene.network.features[picture])
            side = round(len(scores) ** 0.5)
            votes = scores.argmax(-1).view(side, side).numpy()
            bottom.imshow(votes, cmap=colours, vmin=-0.5, vmax=count - 0.5, alpha=0.75)
            write_cells(bottom, votes, np.zeros(votes.shape, dtype=bool), fontsize=7)
            decision = int(scores.mean(0).argmax())
            bottom.set_title(f"mean score: {decision} {scene.classes[decision]}", fontsize=10)
    return drawn
