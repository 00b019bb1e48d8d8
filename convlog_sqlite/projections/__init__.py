"""Projections: state computed from the log, dropped and computed again at any time to the same value."""
