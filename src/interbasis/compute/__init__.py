"""Execution of sums over data: blocks, processes, shards, checkpoints, locks."""
