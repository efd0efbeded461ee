"""Differences between two models with the same sections, section by section, over data."""
