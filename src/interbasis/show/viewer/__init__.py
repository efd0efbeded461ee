"""The page on which a graph is looked at: served on this machine, or one file that works from disk."""

from interbasis.show.viewer.page import graph_html, runs_html, write_graph, write_page
from interbasis.show.viewer.server import ViewerServer

__all__ = ["ViewerServer", "graph_html", "runs_html", "write_graph", "write_page"]
