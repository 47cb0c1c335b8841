from lookalike.retrieval.wording import WORDS, explain_metrics


def test_every_metric_is_explained_once() -> None:
    lines = explain_metrics(["MAP@R", "P@1", "R@1", "R@2", "R@8", "queries"])
    assert [line.partition(":")[0] for line in lines] == ["P@1", "P@R", "MAP@R", "R@K"]
    assert set(WORDS) == {"P@1", "P@R", "MAP@R", "R@K"}
    assert explain_metrics(["queries"]) == []
