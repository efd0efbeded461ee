"""A run on disk: opening it, requests, typed results, and one file per stage."""
