"""The interaction graph: bases of node layers, edges between them, and the folder they are stored in."""
