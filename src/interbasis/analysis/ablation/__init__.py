"""Which edges matter: masked passes, metrics, the search for the fewest edges, curves and controls."""
