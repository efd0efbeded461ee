"""One computation: the graph of what made an output, checked by interventions, and what changes it."""
