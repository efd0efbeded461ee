"""Where and how sums over data run: blocks, processes, shards, checkpoints, locks."""
