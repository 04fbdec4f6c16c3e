"""FP8 weights decoded at every call: the places of the scale, and the twins that mean something else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")
BF16 = torch.bfloat16


def t(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


X, W8, B = t(6, 32, seed=1, dtype=BF16), t(12, 32, seed=2).to(torch.float8_e4m3fn), t(12, seed=3, dtype=BF16)
S0, S1, S11 = torch.tensor(0.37), torch.tensor([0.37]), torch.tensor([[0.37]])
ROWS, COLUMNS, ALL = t(12, 1, seed=4).abs(), t(1, 32, seed=5).abs(), t(12, 32, seed=6).abs()


def test_before_and_after():
    found = rewritten(lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), X, W8, S0)
    assert found.before == lines("""
        to = to.dtype(w_1, torch.bfloat16)
        to_1 = to.dtype(s_1, torch.bfloat16)
        mul = mul.Tensor(to, to_1)
        linear = linear.default(x_1, mul)
        return linear
    """)
    assert "fxrewrite.fp8_linear.default(x_1, w_1, " in found.after
    assert "linear.default(x_1, mul)" not in found.after
    assert "float8" not in found.after
    assert found.of("fp8_matmul").rule == "Fp8Linear"


SPELLINGS = {
    "no scale": (lambda x, w: F.linear(x, w.to(BF16)), (X, W8)),
    "scale, 0-d": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, S0)),
    "scale, 1 element": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, S1)),
    "scale, [1, 1]": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, S11)),
    "scale, a row each": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, ROWS)),
    "scale, a column each": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, COLUMNS)),
    "scale, an element each": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8, ALL)),
    "scale in float32": (lambda x, w, s: F.linear(x, (w.float() * s).to(BF16)), (X, W8, S0)),
    "scale first": (lambda x, w, s: F.linear(x, s.to(BF16) * w.to(BF16)), (X, W8, S0)),
    "a number": (lambda x, w: F.linear(x, w.to(BF16) * 0.25), (X, W8)),
    "a number, divided": (lambda x, w: F.linear(x, w.to(BF16) / 4), (X, W8)),
    "divided": (lambda x, w, s: F.linear(x, (w.float() / s).to(BF16)), (X, W8, S0)),
    "divided, a row each": (lambda x, w, s: F.linear(x, (w.float() / s).to(BF16)), (X, W8, ROWS)),
    "times a reciprocal": (lambda x, w, s: F.linear(x, (w.float() * (1 / s)).to(BF16)), (X, W8, S0)),
    "scaled output": (lambda x, w, s: F.linear(x, w.to(BF16)) * s.to(BF16), (X, W8, S0)),
    "scaled output, a column each": (
        lambda x, w, s: F.linear(x, w.to(BF16)) * s.to(BF16),
        (X, W8, ROWS[:, 0].contiguous()),
    ),
    "scaled output, a number": (lambda x, w: F.linear(x, w.to(BF16)) * 0.25, (X, W8)),
    "bias": (lambda x, w, s, b: F.linear(x, w.to(BF16) * s.to(BF16), b), (X, W8, S0, B)),
    "bias after": (lambda x, w, s, b: F.linear(x, w.to(BF16) * s.to(BF16)) + b, (X, W8, S0, B)),
    "bias after the scale": (lambda x, w, s, b: F.linear(x, w.to(BF16)) * s.to(BF16) + b, (X, W8, S0, B)),
    "matmul": (lambda x, w, s: x @ (w.to(BF16) * s.to(BF16)).t(), (X, W8, S0)),
    "matmul, decoded transposed": (lambda x, w, s: x @ (w.t().to(BF16) * s.to(BF16)), (X, W8, S0)),
    "matmul, a row each, transposed": (lambda x, w, s: x @ (w.t().to(BF16) * s.t().to(BF16)), (X, W8, ROWS)),
    "weight as used": (lambda x, w, s: x @ (w.to(BF16) * s.to(BF16)), (X, W8.t().contiguous(), S0)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.to(BF16).t()), (X, W8, B)),
    "rank 3": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X.view(2, 3, 32), W8, S0)),
    "e5m2": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), (X, W8.float().to(torch.float8_e5m2), S0)),
    "a vector of a scale for each row": (
        lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)[:, None]),
        (X, W8, ROWS[:, 0].contiguous()),
    ),
    "a vector of a scale for each column": (
        lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)),
        (X, W8, COLUMNS[0].contiguous()),
    ),
    "x scaled": (lambda x, w, s: F.linear(x * s.to(BF16), w.to(BF16)), (X, W8, S0)),
    "x scaled, a column each": (lambda x, w, s: F.linear(x * s.to(BF16), w.to(BF16)), (X, W8, COLUMNS)),
    "float32": (lambda x, w, s: F.linear(x, w.float() * s), (X.float(), W8, S0)),
    "float32, bias narrower": (lambda x, w, b: F.linear(x, w.float()) + b, (X.float(), W8, B)),
}


def _by_blocks(x, w, s):
    blocks = w.view(3, 4, 4, 8).to(torch.float32) * s[:, None, :, None]
    return F.linear(x, blocks.view(12, 32).to(BF16))


def _in_place(x, w, s):  # as transformers decodes a weight
    w, s = w.to(BF16), s.to(BF16).repeat_interleave(4, dim=-2)[..., :12, :]
    w[..., :32].unflatten(-1, (4, 8)).mul_(s[..., :4, None])
    return F.linear(x, w)


def _blocks_first(x, w, s):
    blocks = w.view(3, 4, 4, 8).permute(0, 2, 1, 3).to(BF16) * s.to(BF16)[:, :, None, None]
    return F.linear(x, blocks.permute(0, 2, 1, 3).reshape(12, 32))


def _expanded(x, w, s):
    s = s[:, None, :, None].expand(3, 4, 4, 8).reshape(12, 32)
    return F.linear(x, (w.float() * s).to(BF16))


def _repeated(x, w, s):
    return F.linear(x, (w.float() * s.repeat_interleave(4, 0).repeat_interleave(8, 1)).to(BF16))


def _repeated_and_cut(x, w, s):
    s = s.repeat_interleave(5, 0).repeat_interleave(12, 1)[:12, :32]
    return F.linear(x, (w.float() * s).to(BF16))


def _cut_as_repeated(x, w, s):
    s = s.to(BF16).repeat_interleave(5, 0)[:12].repeat_interleave(12, 1)[:, :32]
    return F.linear(x, w.to(BF16) * s)


GRID, CUT_GRID = t(3, 4, seed=7).abs(), t(3, 3, seed=8).abs()
# spelling, inputs, the block that the operator is given
BLOCKS = {
    "weight by blocks": (_by_blocks, (X, W8, GRID), [4, 8]),
    "weight by blocks, divided": (
        lambda x, w, s: F.linear(x, (w.view(3, 4, 4, 8).float() / s[:, None, :, None]).view(12, 32).to(BF16)),
        (X, W8, GRID),
        [4, 8],
    ),
    "weight by blocks in place": (_in_place, (X, W8, GRID), [4, 8]),
    "blocks first": (_blocks_first, (X, W8, GRID), [4, 8]),
    "groups of a row": (
        lambda x, w, s: F.linear(x, (w.to(BF16).view(12, 4, 8) * s.to(BF16)).view(12, 32)),
        (X, W8, t(12, 4, 1).abs()),
        [1, 8],
    ),
    "groups of rows": (
        lambda x, w, s: F.linear(x, (w.to(BF16).unflatten(0, (3, 4)) * s.to(BF16)).flatten(0, 1)),
        (X, W8, t(3, 1, 1).abs()),
        [4, 32],
    ),
    "blocks of a transposed weight": (
        lambda x, w, s: x @ (w.view(8, 4, 3, 4).to(BF16) * s.to(BF16)[:, None, :, None]).view(32, 12),
        (X, W8.t().contiguous(), t(8, 3, seed=9).abs()),
        [4, 4],
    ),
    "blocks, then transposed": (
        lambda x, w, s: x @ (w.view(3, 4, 4, 8).to(BF16) * s.to(BF16)[:, None, :, None]).view(12, 32).t(),
        (X, W8, GRID),
        [4, 8],
    ),
    "scale expanded": (_expanded, (X, W8, GRID), [4, 8]),
    "scale repeated": (_repeated, (X, W8, GRID), [4, 8]),
    "scale repeated, one block too long": (_repeated_and_cut, (X, W8, CUT_GRID), [5, 12]),
    "scale cut after each repetition": (_cut_as_repeated, (X, W8, CUT_GRID), [5, 12]),
    "scale of a row's groups repeated": (
        lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16).repeat_interleave(8, 1)),
        (X, W8, t(12, 4, seed=10).abs()),
        [1, 8],
    ),
}


@pytest.mark.parametrize(("function", "inputs", "block"), BLOCKS.values(), ids=list(BLOCKS))
def test_blocks(function, inputs, block):
    found = rewritten(function, *inputs)
    site = found.of("fp8_matmul")
    assert site.matched, site.reason
    call = next(n for n in found.gm.graph.nodes if n.target is torch.ops.fxrewrite.fp8_linear.default)
    assert call.args[4] == block
    assert call.args[2].meta["val"].numel() <= inputs[2].numel()  # the grid, not what it was expanded to
    assert_right(found, function, *inputs)


def _tiled(x, w, s):
    s = s[None, :, :, None].expand(4, 3, 4, 8).reshape(12, 32)
    return F.linear(x, (w.float() * s).to(BF16))


def _within_blocks(x, w, s):
    return F.linear(x, (w.view(3, 4, 32).to(BF16) * s.to(BF16)).view(12, 32))


def _merged_otherwise(x, w, s):
    return F.linear(x, (w.view(3, 4, 4, 8).to(BF16) * s.to(BF16)[:, None, :, None]).view(24, 16))


# what looks like a scale of blocks and is none
NO_BLOCKS = {
    "varies within blocks": (
        _within_blocks,
        (X, W8, t(4, 1)),
        "scale of shape [1, 4, 1] for a weight of shape [12, 32], seen as ((3, 4), (32,))",
    ),
    "merged to another shape": (_merged_otherwise, (X[:, :16].contiguous(), W8, GRID), "expected"),
}


@pytest.mark.parametrize(("function", "inputs", "reason"), NO_BLOCKS.values(), ids=list(NO_BLOCKS))
def test_no_blocks(function, inputs, reason):
    found = rewritten(function, *inputs)
    site = found.of("fp8_matmul")
    assert not site.matched
    assert reason in site.reason
    assert "fp8_linear" not in found.after


def test_a_tiled_scale_is_taken_as_it_is():
    found = rewritten(_tiled, X, W8, GRID)
    assert_right(found, _tiled, X, W8, GRID)
    call = next((n for n in found.gm.graph.nodes if "fp8_linear" in str(n.target)), None)
    assert call is None or call.args[4] is None


FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("format", FORMATS)
def test_formats_and_dtypes(format, dtype):
    function = lambda x, w, s, b: F.linear(x, w.to(dtype) * s.to(dtype), b)  # noqa: E731
    inputs = X.to(dtype), W8.float().to(format), S0, B.to(dtype)
    found = rewritten(function, *inputs)
    assert found.of("fp8_matmul").matched
    assert_right(found, function, *inputs)


@pytest.mark.parametrize(("function", "inputs"), SPELLINGS.values(), ids=list(SPELLINGS))
def test_spellings(function, inputs):
    found = rewritten(function, *inputs)
    site = found.of("fp8_matmul")
    assert site.matched, site.reason
    assert found.after.count("fxrewrite.fp8_linear") == 1
    assert "fxrewrite.linear" not in found.after
    assert_right(found, function, *inputs)


# the site is found without what follows or precedes it
PARTS = {
    "bias, then the scale": (lambda x, w, s, b: F.linear(x, w.to(BF16), b) * s.to(BF16), (X, W8, S0, B)),
    "a residual": (lambda x, w, r: F.linear(x, w.to(BF16)) + r, (X, W8, t(6, 12, dtype=BF16))),
    "one number for a bias": (lambda x, w: F.linear(x, w.to(BF16)) + 1, (X, W8)),
    "a bias of one element": (lambda x, w, b: F.linear(x, w.to(BF16)) + b, (X, W8, B[:1])),
    "output scaled by a row each": (
        lambda x, w, s: F.linear(x, w.to(BF16)) * s,
        (X, W8, t(6, 1, dtype=BF16)),
    ),
    "two scales": (lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)) * s.to(BF16), (X, W8, S0)),
}


@pytest.mark.parametrize(("function", "inputs"), PARTS.values(), ids=list(PARTS))
def test_parts(function, inputs):
    found = rewritten(function, *inputs)
    assert found.after.count("fxrewrite.fp8_linear") <= 1
    assert_right(found, function, *inputs)
    assert [s.status for s in found.sites if s.kind == "fp8_matmul"] in (["matched"], ["rejected"])


def test_a_decoded_weight_that_is_used_elsewhere_is_decoded_for_that():
    def function(x, w):
        decoded = w.to(BF16)
        return F.linear(x, decoded), decoded.sum()

    found = rewritten(function, X, W8)
    assert found.of("fp8_matmul").matched
    assert_right(found, function, X, W8)


def test_two_layers_that_share_a_decoded_weight_are_two_sites():
    def function(x, w, s):
        decoded = w.to(BF16) * s
        return F.linear(x, decoded), F.linear(x + 1, decoded), decoded.norm()

    found = rewritten(function, X, W8, S0.to(BF16))
    sites = [s for s in found.sites if s.kind == "fp8_matmul"]
    assert [s.status for s in sites] == ["matched"] * 2
    assert_right(found, function, X, W8, S0.to(BF16))


def test_a_decoded_weight_written_to_is_none_that_is_decoded_again():
    def function(x, w):
        decoded = w.to(BF16)
        first = F.linear(x, decoded)
        decoded.mul_(2)
        return first, F.linear(x, decoded)

    found = rewritten(function, X, W8)
    assert_right(found, function, X, W8)


NONE = {
    "a cast of another kind": (lambda x, w: F.linear(x, w.to(BF16)), (X, W8.float())),
    "an integer weight": (lambda x, w: F.linear(x, w.to(BF16)), (X, t(12, 32).to(torch.int8))),
    "through the bits": (lambda x, w: F.linear(x, w.view(torch.uint8).to(BF16)), (X, W8)),
    "a shifted weight": (lambda x, w: F.linear(x, w.to(BF16) + 1), (X, W8)),
}


@pytest.mark.parametrize(("function", "inputs"), NONE.values(), ids=list(NONE))
def test_none(function, inputs):
    found = rewritten(function, *inputs)
    assert "fp8_matmul" not in found.matched


def test_an_output_of_another_dtype():
    function = lambda x, w, s: F.linear(x, w.to(BF16)) * s  # noqa: E731
    found = rewritten(function, X, W8, ROWS[:, 0].contiguous())  # float32 scales: a float32 output
    sites = [s for s in found.sites if s.kind == "fp8_matmul"]
    assert all(s.node != "mul" or not s.matched for s in sites)
    assert found.gm(X, W8, ROWS[:, 0].contiguous()).dtype == torch.float32


def test_symbolic_rows():
    function = lambda x, w, s, b: F.linear(x, w.to(BF16) * s.to(BF16), b)  # noqa: E731
    found = rewritten(function, X, W8, S0, B, dynamic=True)
    assert found.of("fp8_matmul").matched
    inputs = t(9, 32, dtype=BF16), W8, S0, B
    assert_right(found, function, *inputs)


def test_a_weight_decoded_in_place_is_reported():
    """A scale is written into half of the decoded weight, which no scale of the whole says."""

    def function(x, w, s):
        weight = w.to(x.dtype)
        weight[:, :16].mul_(s[:, :1])
        return F.linear(x, weight)

    x, w = torch.randn(4, 32).bfloat16(), torch.randn(16, 32).to(torch.float8_e4m3fn)
    found = rewritten(function, x, w, torch.rand(16, 2).bfloat16())
    assert {s.status for s in found.sites if s.kind == "fp8_matmul"} == {"rejected"}
    assert_right(found, function, x, w, torch.rand(16, 2).bfloat16())


def test_the_linear_on_the_decoded_weight_is_a_part_of_the_site():
    found = rewritten(lambda x, w, s: F.linear(x, w.to(BF16) * s.to(BF16)), X, W8, S0)
    site, part = found.of("fp8_matmul"), found.of("linear")
    assert (site.covered_by, part.covered_by) == ("", site.id)
    assert part.reason == f"OVERLAP: part of the fp8_matmul site at {site.node}"
