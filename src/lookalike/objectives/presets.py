"""The settings of the published tables, by objective and data set.

They are those of Gürbüz's thesis and papers. He took the better settings of Musgrave et al. ("A Metric Learning Reality
Check", ECCV 2020) and of the losses' authors. Objectives that are not listed have their defaults on every data set.
"""

from dataclasses import replace
from typing import Any

from lookalike.objectives.base import Hints

DATA_SETS = ("cub", "cars", "inshop", "sop")
PAPER = "paper"  # the papers' training with the defaults of the loss, for other data sets

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "contrastive": {
        "cub": {"margin": 0.5},
        "cars": {"margin": 0.5},
        "inshop": {"margin": 0.5},
        "sop": {"margin": 0.5},
    },
    "contrastive-distance": {
        "cub": {"positive_margin": 0.0, "negative_margin": 0.3841},
        "cars": {"positive_margin": 0.2652, "negative_margin": 0.5409},
        "inshop": {"positive_margin": 0.2858, "negative_margin": 0.5130},
        "sop": {"positive_margin": 0.2858, "negative_margin": 0.5130},
    },
    "triplet": {
        "cub": {"margin": 0.0961},
        "cars": {"margin": 0.1190},
        "inshop": {"margin": 0.0451},
        "sop": {"margin": 0.0451},
    },
    "multi-similarity": {
        "cub": {"alpha": 2.0, "beta": 40.0, "base": 0.5},
        "cars": {"alpha": 14.35, "beta": 75.83, "base": 0.66},
        "inshop": {"alpha": 8.49, "beta": 57.38, "base": 0.41},
        "sop": {"alpha": 2.0, "beta": 40.0, "base": 0.5},
    },
    "proxy-anchor": {
        "cub": {"margin": 0.1, "sharpness": 32.0},
        "cars": {"margin": 0.1, "sharpness": 32.0},
        "inshop": {"margin": 0.1, "sharpness": 32.0},
        "sop": {"margin": 0.1, "sharpness": 32.0},
    },
    "proxy-nca++": {  # chapter 3 of the thesis has 0.1
        "cub": {"temperature": 0.11},
        "cars": {"temperature": 0.11},
        "inshop": {"temperature": 0.11},
        "sop": {"temperature": 0.11},
    },
    "soft-triple": {  # the large variant; the small one has one centre per class
        "cub": {"scale": 20.0, "gamma": 0.1, "merge": 0.2, "margin": 0.01, "centres_per_class": 10},
        "cars": {"scale": 17.69, "gamma": 19.18, "merge": 0.0669, "margin": 0.3588, "centres_per_class": 10},
        "inshop": {"scale": 20.0, "gamma": 0.1, "merge": 0.2, "margin": 0.01, "centres_per_class": 4},
        "sop": {"scale": 100.0, "gamma": 47.9, "merge": 0.2, "margin": 0.3145, "centres_per_class": 4},
    },
    "libc": {  # Seidenschwarz et al., "Learning Intra-Batch Connections", ICML 2021
        "cub": {"blocks": 1, "heads": 2, "temperature": 0.2},
        "cars": {"blocks": 2, "heads": 8, "temperature": 1 / 9, "concatenate": True},
        "inshop": {"blocks": 1, "heads": 4, "temperature": 0.186},
        "sop": {"blocks": 1, "heads": 8, "temperature": 0.605},
    },
}

# Sizes of the cross-batch memory in batches, and the steps of the plain loss before it is filled.
MEMORY_BATCHES: dict[str, dict[str, int]] = {
    "large": {"cub": 25, "cars": 25, "inshop": 400, "sop": 1400},
    "small": {"cub": 3, "cars": 3, "inshop": 100, "sop": 400},
}
MEMORY_STARTS_AFTER = 1000

LEARNING_RATES: dict[str, dict[str, float]] = {
    "libc": {"cub": 1.564e-4, "cars": 3.668e-4, "inshop": 1.127e-4, "sop": 2.472e-4},
    "proxy-anchor": {"sop": 5e-6},
}


def preset_settings(name: str, preset: str | None) -> dict[str, Any]:
    """Return the published settings of an objective for a data set; empty if there are none."""
    if preset is None:
        return {}
    _check(preset)
    return PRESETS.get(name, {}).get(preset, {})


def preset_hints(name: str, hints: Hints, preset: str | None) -> Hints:
    """Return the hints of an objective with the learning rate of a preset."""
    if preset is None:
        return hints
    _check(preset)
    return replace(hints, learning_rate=LEARNING_RATES.get(name, {}).get(preset, hints.learning_rate))


def _check(preset: str) -> None:
    names = (*DATA_SETS, PAPER)
    if preset not in names:
        raise ValueError(f"there is no preset {preset!r}; there are: {', '.join(names)}, or None for the defaults")
