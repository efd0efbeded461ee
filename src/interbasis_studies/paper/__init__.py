"""The paper's experiments: tasks over one plan, one runner and one page."""
