"""The roofline: how fast a site could run at best, by its work and what the machine can do.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009: time >= max(operations / peak, bytes / bandwidth).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .site import Site
from .words import amount, duration

DTYPES = ("float32", "bfloat16", "float16")
"""Of activations, for which there is a peak."""


@dataclass(frozen=True)
class Ceilings:
    """What a machine can do: ``peak`` operations a second in ``dtype``, ``bandwidth`` bytes a second."""

    dtype: str
    peak: float
    bandwidth: float
    threads: int


def activations(site: Site) -> str:
    """The dtype that the site's products are of, "" where it is none of `DTYPES`."""
    for described in site.operands.values():
        dtype = re.match(r"\w+", described)
        if dtype and dtype[0] in DTYPES:
            return dtype[0]
    return ""


def expected(site: Site, measure: Callable[[str], Ceilings]) -> str:
    """The least time of a call in words, an estimate; "" where its work was not counted.

    ``measure`` gives the ceilings for a dtype.
    """
    dtype = activations(site)
    if not (site.work and site.bytes and dtype):
        return ""
    found = measure(dtype)
    computing, moving = site.work / found.peak, site.bytes / found.bandwidth
    bound = "computing" if computing > moving else "memory"
    return (
        f"about {duration(max(computing, moving))} at best, bound by {bound}. An estimate: "
        f"{duration(computing)} of products at {amount(found.peak, 'FLOP/s')} and "
        f"{duration(moving)} of memory at {amount(found.bandwidth, 'B/s')}, as measured on this "
        f"CPU now, {found.threads} thread{'s' * (found.threads != 1)}"
    )
