"""The figures of the study ``collage``: learning curves, and heat maps of known and unseen sub-classes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lookalike.demo.pictures import Shots
from lookalike.demo.training import Contestant
from lookalike.report.theme import INK, Style, figure, style, theme
from lookalike_studies.collage.claims import DISTILLED, Run
from lookalike_studies.framework.plots import curve
from lookalike_studies.localisation.plots import Heat, heat_maps


def draw_curves(contestants: Sequence[Contestant], runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw MAP@R of the validation, or else the loss of each epoch, over training: mean and range over seeds."""
    validated = all(run.curve for of_seeds in runs.values() for run in of_seeds)
    with theme():
        drawn, (panel,) = figure(8, 4.5)
        for contestant in contestants:
            if validated:
                curves = np.array([run.curve for run in runs[contestant.name]])  # (seeds, evaluations, step and MAP@R)
                steps, values = curves[0, :, 0], 100 * curves[:, :, 1]
            else:
                values = np.array([run.losses for run in runs[contestant.name]])
                steps = np.arange(1, 1 + values.shape[1])
            look = style(contestant.pooling)
            if contestant.zero_shot:
                look = style(f"{contestant.pooling} + zero-shot")
            elif contestant.name == DISTILLED:
                look = Style(INK, "x", line=":")
            panel.plot(steps, values.mean(0), label=contestant.name, **curve(look))
            if len(values) > 1:
                panel.fill_between(steps, values.min(0), values.max(0), color=look.colour, alpha=0.15, linewidth=0)
        if validated:
            panel.set(xlabel="steps of training", ylabel="MAP@R of the validation, %")
        else:
            panel.set(xlabel="epochs of training", ylabel="training loss")
        panel.legend()
    return drawn


def draw_heat_maps(training: Shots, test: Shots, heats: Sequence[Heat]) -> Figure:
    """Draw the weights of ``heats`` on collages of the training, then on collages of the test."""
    shown = Shots(
        np.concatenate([training.pixels, test.pixels]),
        np.concatenate([training.labels, test.labels]),
        np.concatenate([training.cells, test.cells]),
    )
    drawn = heat_maps(shown, heats, np.arange(len(shown.labels)))
    with theme():
        for row in range(len(shown.labels)):
            side = "training" if row < len(training.labels) else "unseen"
            drawn.axes[row * (1 + len(heats))].set_ylabel(side, fontsize=10)
    return drawn
