"""The paper's experiments, each as a function that returns plain data."""
