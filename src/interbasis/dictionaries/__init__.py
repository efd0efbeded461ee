"""Sparse dictionaries of activations: more features than dimensions, few of them active at a token."""
