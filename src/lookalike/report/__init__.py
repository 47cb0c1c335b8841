"""Figures, tables and pages: one look for everything that is shown."""
