"""Shared helpers: argument checks, atomic files, suggestions, progress, signals and declarative settings."""
