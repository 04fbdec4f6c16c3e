"""Selection, graph surgery, and the driver that every door uses."""

from .driver import rewrite_graph
from .opaque import uncaptured_sites
from .options import Options, make_options

__all__ = ["Options", "make_options", "rewrite_graph", "uncaptured_sites"]
