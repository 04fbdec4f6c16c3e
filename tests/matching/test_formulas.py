"""Formulas: what they say of each element is what torch computes; what they cannot say they refuse."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from fxrewrite.matching import Aliasing
from fxrewrite.matching.formulas import Formulas, NotIndexArithmeticError
from fxrewrite.matching.value import plain
from tests.support.graphs import returned, trace

N, M = 4, 6


def _rows_and_columns(x):
    return torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None, :]


def _packed(x):
    """The mask that transformers builds for one packed sequence of plain positions."""
    positions = torch.arange(x.shape[1]).unsqueeze(0).expand(2, -1)
    number = (torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    batch = torch.arange(2)[:, None, None, None]
    q, k = torch.arange(x.shape[1])[None, None, :, None], torch.arange(x.shape[1])[None, None, None, :]
    same = number[batch, q] == number[batch, k]
    return x.new_ones((), dtype=torch.bool) & (positions[batch, k] <= positions[batch, q]) & same


KNOWN = {
    "causal": lambda x: torch.ge(*_rows_and_columns(x)),
    "offset": lambda x: torch.arange(2, x.shape[0] + 2)[:, None] > torch.arange(x.shape[1]),
    "step": lambda x: torch.arange(0, 2 * x.shape[1], 2) + x.shape[0],
    "tril": lambda x: torch.ones(x.shape[0], x.shape[1], dtype=torch.bool).tril(),
    "triu_1": lambda x: torch.full((x.shape[0], x.shape[1]), float("-inf")).triu(1),
    "tril_of_a_filled": lambda x: torch.full_like(x, 3.0).tril(-1),
    "window": lambda x: (lambda i, j: (j <= i) & (j > i - 2))(*_rows_and_columns(x)),
    "either": lambda x: (lambda i, j: (j <= i) | (j == 5))(*_rows_and_columns(x)),
    "not": lambda x: (lambda i, j: ~(j > i))(*_rows_and_columns(x)),
    "logical": lambda x: (lambda i, j: torch.logical_and(torch.logical_not(j > i), j != 2))(
        *_rows_and_columns(x)
    ),
    "where": lambda x: torch.where(torch.ge(*_rows_and_columns(x)), 0.0, -1e9),
    "where_of_conditions": lambda x: (lambda i, j: torch.where(j < 3, j <= i, j != 4))(*_rows_and_columns(x)),
    "masked_fill": lambda x: torch.zeros(x.shape[0], x.shape[1]).masked_fill(
        torch.lt(*_rows_and_columns(x)), -1e4
    ),
    "one_minus_times": lambda x: (1.0 - torch.ge(*_rows_and_columns(x)).float()) * -10000.0,
    "added_to_a_condition": lambda x: torch.ge(*_rows_and_columns(x)) + 2,
    "equal_to_a_condition": lambda x: torch.ge(*_rows_and_columns(x)).int() == 1,
    "to_bool": lambda x: torch.ge(*_rows_and_columns(x)).float().to(torch.bool),
    "rank_4": lambda x: torch.ge(*_rows_and_columns(x))[None, None].expand(2, 1, -1, -1),
    "repeated": lambda x: torch.ge(*_rows_and_columns(x))[None, None].repeat(2, 1, 1, 1),
    "viewed": lambda x: torch.ge(*_rows_and_columns(x)).view(1, x.shape[0], x.shape[1], 1).squeeze(-1),
    "transposed": lambda x: torch.ge(*_rows_and_columns(x)).mT,
    "sliced": lambda x: torch.ones(8, 9, dtype=torch.bool).tril()[2 : 2 + x.shape[0], 1 : 1 + x.shape[1]],
    "selected": lambda x: torch.ge(*_rows_and_columns(x))[2],
    "differences": lambda x: torch.diff(torch.arange(x.shape[1]) * 3),
    "sums": lambda x: torch.full((x.shape[1],), 2).cumsum(0),
    "packed": _packed,
}

UNKNOWN = {
    "input": lambda x: x > 0,
    "rounded_positions": lambda x: torch.arange(x.shape[1], dtype=torch.bfloat16),
    "cast_positions": lambda x: torch.arange(x.shape[1]).to(torch.bfloat16),
    "merged_dims": lambda x: torch.ge(*_rows_and_columns(x)).flatten(),
    "from_the_end": lambda x: torch.arange(9)[torch.arange(x.shape[1]) - 2],
    "repeated_positions": lambda x: torch.arange(x.shape[1]).repeat(2),
    "by_a_mask": lambda x: torch.arange(6)[torch.arange(6) < 3],
    "written_to": lambda x: torch.zeros(6).fill_(1.0) * 1,
    "sums_of_positions": lambda x: torch.arange(x.shape[1]).cumsum(0),
    "bits": lambda x: torch.arange(x.shape[1]) & 1,
    "nan": lambda x: (1.0 - torch.ge(*_rows_and_columns(x)).float()) * float("-inf"),
}


def _as_float(value):
    return float(bool(value)) if value in (sympy.true, sympy.false) else float(value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_every_element_is_what_torch_computes(name, dynamic):
    x = torch.zeros(N, M)
    gm = trace(KNOWN[name], x, dynamic=dynamic)
    expected = KNOWN[name](x)
    formulas = Formulas(Aliasing(gm.graph))
    sizes = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and node.op == "placeholder" and dynamic:
            sizes = dict(zip([s.node.expr for s in value.shape], (N, M), strict=True))
    for index in itertools.product(*map(range, expected.shape)):
        formula = formulas.of(plain(returned(gm)), [sympy.Integer(i) for i in index])
        assert _as_float(formula.subs(sizes)) == float(expected[index]), index


@pytest.mark.parametrize("name", KNOWN)
def test_the_formula_in_symbols_is_that_of_the_elements(name):
    x = torch.zeros(N, M)
    gm = trace(KNOWN[name], x)
    expected = KNOWN[name](x)
    symbols = [sympy.Dummy(integer=True, nonnegative=True) for _ in expected.shape]
    formula = Formulas(Aliasing(gm.graph)).of(plain(returned(gm)), symbols)
    for index in itertools.product(*map(range, expected.shape)):
        value = formula.subs(dict(zip(symbols, index, strict=True)))
        assert _as_float(value) == float(expected[index]), index


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_has_no_formula_is_refused(name):
    gm = trace(UNKNOWN[name], torch.zeros(N, M))
    out = plain(returned(gm))
    with pytest.raises(NotIndexArithmeticError):
        Formulas(Aliasing(gm.graph)).of(
            out, [sympy.Dummy(integer=True, nonnegative=True) for _ in range(out.rank)]
        )
