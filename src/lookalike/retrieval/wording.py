"""What the retrieval metrics mean, in the same words on the terminal, in reports and on the model card."""

from collections.abc import Iterable

WORDS = {
    "P@1": "how often the nearest picture is of the same class.",
    "P@R": "share of the same class among the R nearest pictures. R: how many other pictures the class has.",
    "MAP@R": "like P@R, but right pictures count more the nearer they are; 100 % only if all R are right.",
    "R@K": "how often at least one of the K nearest pictures is of the same class.",
}


def explain_metrics(metrics: Iterable[str]) -> list[str]:
    """Explain retrieval metrics, one line each.

    Args:
        metrics: Their names. Other names are skipped; MAP@R comes with P@R, which its text needs.

    Examples:
        >>> explain_metrics(["R@1", "R@8", "queries"])
        ['R@K: how often at least one of the K nearest pictures is of the same class.']
    """
    kinds = set()
    for metric in metrics:
        kinds.add("R@K" if metric.startswith("R@") else metric)
    if "MAP@R" in kinds:
        kinds.add("P@R")
    return [f"{kind}: {text}" for kind, text in WORDS.items() if kind in kinds]
