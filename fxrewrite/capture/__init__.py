"""Capture: any model becomes functional, pre-dispatch ATen.

In this form ``linear``, ``scaled_dot_product_attention``, ``matmul`` and ``softmax`` are still
whole, and every Python spelling has become one of few. This is the only folder of the package that
touches private APIs of torch.
"""

from .breaks import GraphBreaks
from .calls import being_traced, call_compiled, computes_tangents, computing, uncompilable, with_own_code
from .dry_run import FakeCall, fake_call, run_fake
from .dynamo import cached_as, from_dynamo, has_inner_tensors, on_inner_tensors
from .exported import enforced_sizes, from_exported, renaming_outputs
from .graphs import canonical_graph, fake_mode_of, in_autocast, shape_env_of_graph
from .repeats import block_kind, repeated_blocks
from .symbols import (
    ShapeFacts,
    adding_guards,
    evaluated,
    example_size,
    expression_text,
    facts_version,
    integer_function,
    shape_env_of,
    shape_facts,
    symbolic_expression,
)
from .tensors import copy_sharing_tensors, reachable_tensors

__all__ = [
    "FakeCall",
    "GraphBreaks",
    "ShapeFacts",
    "adding_guards",
    "being_traced",
    "block_kind",
    "cached_as",
    "call_compiled",
    "canonical_graph",
    "computes_tangents",
    "computing",
    "copy_sharing_tensors",
    "enforced_sizes",
    "evaluated",
    "example_size",
    "expression_text",
    "facts_version",
    "fake_call",
    "fake_mode_of",
    "from_dynamo",
    "from_exported",
    "has_inner_tensors",
    "in_autocast",
    "integer_function",
    "on_inner_tensors",
    "reachable_tensors",
    "renaming_outputs",
    "repeated_blocks",
    "run_fake",
    "shape_env_of",
    "shape_env_of_graph",
    "shape_facts",
    "symbolic_expression",
    "uncompilable",
    "with_own_code",
]
