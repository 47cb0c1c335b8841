"""Search for good settings with Optuna."""
