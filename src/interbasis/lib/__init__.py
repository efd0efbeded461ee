"""The method, from a network and data to a graph: statistics, Jacobian Grams, bases, edges."""
