"""Guards: conditions with three verdicts, and the prover that judges them."""

from .verdict import Judgement, Verdict
from .vocabulary import (
    Guard,
    at_least,
    at_most,
    device_is,
    divisible,
    dtype_in,
    equal,
    holds,
    same_dtype,
    same_shape,
)

__all__ = [
    "Guard",
    "Judgement",
    "Verdict",
    "at_least",
    "at_most",
    "device_is",
    "divisible",
    "dtype_in",
    "equal",
    "holds",
    "same_dtype",
    "same_shape",
]
