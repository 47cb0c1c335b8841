"""The figures of the study ``average-pooling``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike.report.theme import FAINT, INK, figure, theme
from lookalike_studies.average_pooling.maths import Combined
from lookalike_studies.framework.hulls import Overlap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 6000  # local features that are drawn
PATCHES = 4  # of each prototype
PATCH = 12  # pixels of 32
EXAMPLES = 3
MAPS = 5
RED, BLUE = "#D55E00", "#0072B2"
MARKERS = "os^Dv<>pPX"


class Scene(NamedTuple):
    """What one network sees."""

    pixels: NDArray[np.uint8]  # (B, S, S, 3)
    labels: NDArray[np.int64]  # (B,)
    classes: Sequence[str]
    features: Tensor  # (B, n, 2)
    prototypes: Tensor  # (m, 2)
    combined: Combined
    radius: float  # covering radius of all features


def class_colours(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["tab10" if count <= 10 else "hsv"](i if count <= 10 else i / count) for i in range(count)]


def draw_partition(scene: Scene) -> "Figure":
    """The plane, divided among the prototypes."""
    from matplotlib.patches import Circle
    from scipy.spatial import Voronoi, voronoi_plot_2d

    with theme():
        drawn, (panel,) = figure(9.5, 9)
        points = scene.features.flatten(0, 1)
        panel.scatter(
            *points[:: max(1, len(points) // POINTS)].T, s=2, color=BLUE, alpha=0.35, label="local features (some)"
        )
        prototypes = scene.prototypes.double().numpy()
        if len(np.unique(prototypes, axis=0)) > 3:
            # Far mirrors of the plane's corners, so that every cell that is seen is bounded.
            far = 50 * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
            voronoi_plot_2d(
                Voronoi(np.concatenate([prototypes, far])),
                panel,
                show_points=False,
                show_vertices=False,
                line_width=0.8,
            )
        panel.scatter(*prototypes.T, s=28, color=RED, marker="s", zorder=4, label="prototypes")
        for number, at in enumerate(prototypes):
            panel.annotate(str(number), at, (4, 4), textcoords="offset points", fontsize=8, zorder=5)
        worst = scene.features.flatten(0, 1)[_farthest(scene)]
        panel.add_patch(
            Circle(prototypes[_nearest(scene, worst)], scene.radius, fill=False, ec=INK, lw=1.5, ls="--", zorder=6)
        )
        panel.plot([], [], color=INK, lw=1.5, ls="--", label=f"covering radius {scene.radius:.3f}, where it is reached")
        panel.set(
            xlim=(-1.12, 1.12),
            ylim=(-1.12, 1.12),
            aspect="equal",
            xlabel="first coordinate",
            ylabel="second coordinate",
        )
        panel.grid(visible=False)
        drawn.legend(loc="outside lower center", ncols=3, markerscale=1.5)
    return drawn


def _farthest(scene: Scene) -> int:
    own = scene.prototypes[scene.combined.nearest.flatten()]
    return int(torch.linalg.vector_norm(scene.features.flatten(0, 1) - own, dim=-1).argmax())


def _nearest(scene: Scene, point: Tensor) -> int:
    return int(torch.linalg.vector_norm(scene.prototypes - point, dim=-1).argmin())


def draw_patches(scene: Scene) -> "Figure":
    """Of each prototype, the patches around the places whose features lie nearest to it, from different pictures."""
    columns = 6
    rows = -(-len(scene.prototypes) // columns)
    strips = []
    for number in range(len(scene.prototypes)):
        places = nearest_places(scene, number)
        strip = np.concatenate([patch(scene, *place) for place in places], axis=1)
        strips.append(np.pad(strip, ((1, 1), (strip.shape[0] // 2, 0), (0, 0)), constant_values=255))  # room to number
    height, width = strips[0].shape[:2]
    empty = [np.full_like(strips[0], 255)] * (rows * columns - len(strips))
    sheet = np.concatenate(strips + empty).reshape(rows, columns, height, width, 3)
    with theme():
        drawn, (panel,) = figure(13, 13 * rows * height / (columns * width) + 0.3)
        panel.imshow(sheet.transpose(0, 2, 1, 3, 4).reshape(rows * height, columns * width, 3))
        for number in range(len(strips)):
            row, column = divmod(number, columns)
            at = (column * width + 0.36 * height, (row + 0.5) * height)
            panel.text(*at, str(number), ha="right", va="center", fontsize=11)
        panel.set_axis_off()
        panel.set_title("prototype, and the patches nearest to it")
    return drawn


def nearest_places(scene: Scene, number: int, count: int = PATCHES) -> list[tuple[int, int]]:
    """(picture, place) of the features that lie nearest to a prototype, no two in one picture."""
    distances = torch.linalg.vector_norm(scene.features - scene.prototypes[number], dim=-1)
    best, place = distances.min(1)
    pictures = best.argsort(stable=True)[:count].tolist()
    return [(picture, int(place[picture])) for picture in pictures]


def patch(scene: Scene, picture: int, place: int) -> NDArray[np.uint8]:
    """The pixels around a place, with a white edge on the right."""
    side = round(scene.features.shape[1] ** 0.5)
    pixels = scene.pixels[picture]
    size, reach = pixels.shape[0], PATCH * pixels.shape[0] // 64
    row, column = ((each * 2 + 1) * size // (2 * side) for each in divmod(place, side))
    padded = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    cut = padded[row : row + 2 * reach, column : column + 2 * reach]
    return np.pad(cut, ((0, 0), (0, 1), (0, 0)), constant_values=255)


def draw_hulls(scene: Scene, hulls: Sequence[Tensor], common: Overlap) -> "Figure":
    """Left the hulls of the active prototypes of each class, and the averages; right what two classes share."""
    from matplotlib.patches import Polygon

    count = len(scene.classes)
    colours = class_colours(count)
    with theme():
        drawn, (plane, matrix) = figure(15, 6.6, 1, 2)
        for label, hull in enumerate(hulls):
            corners = hull.numpy()
            plane.add_patch(
                Polygon(
                    corners,
                    closed=True,
                    fc=(*colours[label][:3], 0.06),
                    ec=colours[label],
                    lw=2,
                    ls=("-", "--", "-.", ":")[label % 4],
                )
            )
            own = scene.combined.average[torch.from_numpy(scene.labels == label)]
            plane.scatter(
                *own.T,
                s=16,
                color=colours[label],
                marker=MARKERS[label % len(MARKERS)],
                ec=INK,
                lw=0.2,
                label=f"{label} {scene.classes[label]}",
            )
        plane.scatter(*scene.prototypes.T, s=12, color=INK, marker="s", label="prototypes")
        plane.set(
            xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal", xlabel="first coordinate", ylabel="second coordinate"
        )
        plane.set_title("hulls of active prototypes; points: averages of pictures")
        plane.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), markerscale=1.4)
        plane.grid(visible=False)
        smaller = torch.minimum(common.areas, common.areas.unsqueeze(1))
        shares = (100 * torch.where(smaller > 0, common.common / smaller, 0)).numpy()
        np.fill_diagonal(shares, np.nan)
        image = matrix.imshow(shares, cmap="Greys", vmin=0, vmax=100)
        if count <= 12:
            for (row, column), share in np.ndenumerate(shares):
                if row != column:
                    matrix.text(
                        column,
                        row,
                        f"{share:.0f}",
                        ha="center",
                        va="center",
                        fontsize=8,
                        color="white" if share > 55 else INK,
                    )
        matrix.set(
            xticks=range(count),
            yticks=range(count),
            xlabel="class",
            yticklabels=[f"{i} {n}" for i, n in enumerate(scene.classes)],
        )
        matrix.set_title("common area of two hulls")
        matrix.grid(visible=False)
        drawn.colorbar(image, ax=matrix, shrink=0.8, label="% of the smaller hull")
    return drawn


def draw_mixtures(scene: Scene) -> "Figure":
    """Single pictures: their local features, the prototypes they use, the average and the mixture."""
    from matplotlib.patches import Circle

    with theme():
        drawn, panels = figure(4.3 * EXAMPLES, 6.6, 2, EXAMPLES)
        for column, picture in enumerate(examples(scene, EXAMPLES)):
            top, plane = panels[column], panels[EXAMPLES + column]
            top.imshow(scene.pixels[picture])
            top.set_axis_off()
            top.set_title(scene.classes[scene.labels[picture]])
            average, mixture = scene.combined.average[picture], scene.combined.combination[picture]
            used = scene.combined.histogram[picture] > 0
            plane.scatter(*scene.features[picture].T, s=8, color=BLUE, alpha=0.6, label="local features")
            plane.scatter(*scene.prototypes.T, s=10, fc="none", ec=FAINT, marker="s")
            shares = scene.combined.histogram[picture][used]
            plane.scatter(
                *scene.prototypes[used].T,
                s=20 + 600 * shares,
                fc="none",
                ec=RED,
                marker="s",
                lw=1.3,
                label="prototypes, by their share",
            )
            plane.scatter(*average, s=130, marker="+", color=INK, lw=2.2, label="average (GAP)", zorder=5)
            plane.scatter(*mixture, s=90, marker="x", color=INK, lw=2.2, label="mixture (PCC)", zorder=5)
            plane.add_patch(
                Circle((float(average[0]), float(average[1])), scene.radius, fill=False, ec=INK, ls="--", lw=1.2)
            )
            plane.set(
                xlim=(-1.1, 1.1),
                ylim=(-1.1, 1.1),
                aspect="equal",
                xlabel="first coordinate",
                ylabel="second coordinate",
            )
            plane.set_title(
                f"apart by {float(scene.combined.error[picture]):.3f}, bound {scene.radius:.3f} (dashed)", fontsize=10
            )
            plane.grid(visible=False)
        handles, labels = panels[EXAMPLES].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn


def examples(scene: Scene, count: int) -> list[int]:
    """The first picture of some classes, evenly spread."""
    chosen = np.linspace(0, len(scene.classes) - 1, count).round().astype(int)
    return [int(np.flatnonzero(scene.labels == label)[0]) for label in chosen]


def draw_bound(seen: Sequence[tuple[int, Combined, float]]) -> "Figure":
    """Left every picture's error below its own covering radius, right all errors below the radius of all features."""
    with theme():
        drawn, (scatter, sorted_errors) = figure(12, 4.8, 1, 2)
        for number, (seed, combined, radius) in enumerate(seen):
            colour, marker, line = ((BLUE, "o", "-"), (RED, "s", "--"), ("#009E73", "^", "-."))[number % 3]
            error, own = combined.error.numpy(), combined.radius.numpy()
            scatter.scatter(own, error, s=8, color=colour, marker=marker, alpha=0.6, label=f"seed {seed}")
            sorted_errors.plot(
                np.arange(1, len(error) + 1), np.sort(error), color=colour, ls=line, lw=2, label=f"seed {seed}: error"
            )
            sorted_errors.axhline(
                radius, color=colour, lw=1.4, ls=":", label=f"seed {seed}: covering radius {radius:.3f}"
            )
        most = 1.1 * max(radius for _, _, radius in seen)
        scatter.plot([0, most], [0, most], color=INK, lw=1, ls=":", label="bound")
        scatter.set(
            xlabel="covering radius over the features of the picture",
            ylabel="||PCC - GAP|| of the picture",
            xlim=(0, most),
            ylim=(0, most),
        )
        sorted_errors.set(xlabel="pictures, by their error", ylabel="||PCC - GAP||", ylim=(0, most))
        scatter.legend(loc="upper left")
        sorted_errors.legend(loc="center left")
    return drawn


def draw_class_maps(scene: Scene, layer: nn.Linear) -> "Figure":
    """For some pictures the class of the highest score at each place, by number; above, what their mean decides."""
    from matplotlib.colors import ListedColormap

    count = len(scene.classes)
    shown = examples(scene, min(MAPS, count))
    colours = ListedColormap([(*each[:3], 1) for each in class_colours(count)])
    with theme():
        rows = -(-len(shown) // 5)
        drawn, panels = figure(13, 5.4 * rows, 2 * rows, 5)
        for panel in panels:
            panel.set_axis_off()
        for number, picture in enumerate(shown):
            row, column = divmod(number, 5)
            above, below = panels[2 * row * 5 + column], panels[(2 * row + 1) * 5 + column]
            above.imshow(scene.pixels[picture])
            above.set_title(f"{scene.labels[picture]} {scene.classes[scene.labels[picture]]}", fontsize=11)
            scores = layer(scene.features[picture])
            side = round(len(scores) ** 0.5)
            votes = scores.argmax(-1).view(side, side).numpy()
            below.imshow(votes, cmap=colours, vmin=-0.5, vmax=count - 0.5, alpha=0.75)
            for (y, x), vote in np.ndenumerate(votes):
                below.text(x, y, str(vote), ha="center", va="center", fontsize=7)
            decided = int(scores.mean(0).argmax())
            below.set_title(f"mean score: {decided} {scene.classes[decided]}", fontsize=10)
    return drawn
