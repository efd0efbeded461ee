"""Analyses of graphs between dictionaries: descriptions, traces, checks, ablation, comparison."""
