"""The catalogue of reasons for which a site is refused."""

from __future__ import annotations

import enum


class Reason(enum.Enum):
    """Why a candidate was not rewritten. The value is the explanation that the report prints."""

    GUARD = "a condition that every kernel needs does not hold"
    STRUCTURE = "the code around the anchor differs from every known form"
    NO_KERNEL = "no kernel of ours is faster than the framework's here"
    REQUIRES_GRAD = "a gradient is needed: run under torch.no_grad() or torch.inference_mode()"
    AUTOCAST = "inside an autocast region, where the captured dtypes are not those of the run"
    MUTATION = "an in-place operation lies between the nodes of the site"
    ESCAPES = "an inner value of the site is used elsewhere"
    DROPOUT = "dropout is active"
    OPAQUE = "a fused operator of the framework hides the site"
    METADATA = "the replacement's shape, dtype or strides differ from the original's"
    OVERLAP = "a better site covers these nodes"
    INTERNAL = "a fault of fxrewrite or of a rule, which the log tells in full"
    UNPROVED = "a condition could not be proved, and on_unknown is 'reject'"
