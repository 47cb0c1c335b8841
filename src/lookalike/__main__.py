from lookalike.cli import script

script()
