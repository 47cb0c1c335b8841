"""One file per figure of the papers."""
