"""`yoked watch --web`: the view of a run as a page, for browsers that reach loopback."""

from yoked.watch.web.serving import serve

__all__ = ["serve"]
