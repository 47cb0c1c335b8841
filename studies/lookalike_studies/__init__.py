"""One file per figure of the papers, and what it takes to run one: ``lookalike study NAME``."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lookalike_studies.framework.study import Study

# By name, the file that has it; in the order in which the papers' story is told.
STUDIES = {
    "toy": "toy",
    "tokens": "tokens",
    "collage": "collage",
    "zero-shot-prediction": "zero_shot_prediction",
    "average-pooling": "average_pooling",
    "ccp-geometry": "ccp_geometry",
    "centres": "centres",
    "effects": "effects",
    "localisation": "localisation",
}


def find(name: str) -> "Study":
    """The study of this name."""
    from lookalike._util.suggestions import did_you_mean

    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}{did_you_mean(name, STUDIES)}; lookalike study list shows them")
    study: Study = import_module(f"lookalike_studies.{STUDIES[name]}.study").STUDY
    return study
