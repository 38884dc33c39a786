"""Experiments: one question per file, data first, verdicts computed from data."""
