"""The page of a graph between dictionaries."""
