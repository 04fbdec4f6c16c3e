"""The pattern language and the matcher."""

# Readers register themselves when they are imported.
from . import activations, contractions, elementwise, foreign, pairs, reductions, shapes  # noqa: F401
from .aliasing import Aliasing
from .matcher import APPLIED_TO, Match, Matcher, Mismatch
from .pattern import Pattern, Vocabulary
from .rule import Rule
from .value import View

__all__ = ["APPLIED_TO", "Aliasing", "Match", "Matcher", "Mismatch", "Pattern", "Rule", "View", "Vocabulary"]
