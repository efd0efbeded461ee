"""Ablation of edges and nodes: masked passes, metrics, search for the fewest edges, curves and controls."""
