"""Figures of the study of the CIFAR collage: learning curves, and heat maps of known and unseen sub-classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lookalike.demo.race import Contestant, Shots
from lookalike.report.theme import INK, figure, style, theme
from lookalike_studies.localisation.masks import spread
from lookalike_studies.localisation.plots import Heat, heat_maps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_curves(curves: Sequence[tuple[Contestant, Sequence[Sequence[tuple[int, float]]]]]) -> Figure:
    """Of each contestant one curve of (step, MAP@R) for each seed."""
    with theme():
        drawn, (panel,) = figure(8, 4.5)
        for contestant, own in curves:
            steps = [step for step, _ in own[0]]
            values = 100 * np.array([[each for _, each in curve] for curve in own])
            looks = style(contestant.pooling + (" + zero-shot" if contestant.zero_shot else ""))
            is_distilled = "distilled" in contestant.name
            panel.plot(
                steps,
                values.mean(0),
                color=INK if is_distilled else looks.colour,
                marker="x" if is_distilled else looks.marker,
                linestyle=(0, (1, 3)) if is_distilled else looks.line,
                label=contestant.name,
            )
            if len(values) > 1:
                panel.fill_between(steps, values.min(0), values.max(0), color=looks.colour, alpha=0.15, linewidth=0)
        panel.set(xlabel="steps of training", ylabel="MAP@R of the validation, %")
        panel.legend()
    return drawn


def draw_heat_maps(
    train: Shots,
    test: Shots,
    weights: Sequence[tuple[Contestant, NDArray[np.float32]]],
    of_train: NDArray[np.int64],
    of_test: NDArray[np.int64],
) -> Figure:
    """weights: of each contestant on the chosen collages of the training, then those of the test (n, places)."""
    shown = Shots(
        *(
            np.concatenate([getattr(train, name)[of_train], getattr(test, name)[of_test]])
            for name in ("pixels", "labels", "cells")
        )
    )
    drawn = heat_maps(shown, [Heat(*pair) for pair in weights], spread, np.arange(len(shown.labels)))
    with theme():
        for row in range(len(shown.labels)):
            side = "training" if row < len(of_train) else "unseen"
            drawn.axes[row * (1 + len(weights))].set_ylabel(side, fontsize=10)
    return drawn
