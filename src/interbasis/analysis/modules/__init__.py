"""Modules of features: Leiden, a null model, and vertex cuts between modules."""
