"""One yardstick for every method that ranks the directions of a network's activations."""
