"""The page on which a graph is looked at: served on this machine, or one file that works from disk."""

from interbasis.show.viewer.page import run_page, runs_html, write_page, write_run
from interbasis.show.viewer.payload import describe_opening_view
from interbasis.show.viewer.server import ViewerServer

__all__ = ["ViewerServer", "describe_opening_view", "run_page", "runs_html", "write_page", "write_run"]
