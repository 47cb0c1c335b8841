"""The version of stored results. Raise it when the same settings would give other numbers."""

RESULTS_VERSION = 2  # results with another version are computed again
