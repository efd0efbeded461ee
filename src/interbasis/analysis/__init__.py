"""Measurements on a graph: a frozen request and a frozen result each."""
