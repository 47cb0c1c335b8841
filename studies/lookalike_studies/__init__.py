"""Studies: the figures of the papers, one folder each. ``lookalike study NAME`` runs one."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lookalike_studies.framework.study import Study

# Name on the command line and folder, in the order of the papers.
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


def get_study(name: str) -> "Study":
    """Import a study by its name in ``STUDIES``; raises ValueError if there is none of this name."""
    from lookalike._util.suggestions import did_you_mean

    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}{did_you_mean(name, STUDIES)}; lookalike study list shows them")
    study: Study = import_module(f"lookalike_studies.{STUDIES[name]}.study").STUDY
    return study
