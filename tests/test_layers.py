"""Layers of other libraries that are written out: their weights stay in FP8, one byte a weight."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxrewrite
from tests.support.contract import check

pytestmark = pytest.mark.usefixtures("any_kernel")
FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
X = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1)).to(BF16)


def sites(model):
    return [(s.kind, s.status) for s in model.report.sites if s.kind == "fp8_matmul"]


def run(model, x=X):
    with torch.no_grad():
        return model(x)


def spread(scale, rows, columns, shape):
    return scale.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(columns, 1)[:, : shape[1]]


# ------------------------------------------------------------------------------------ compressed-tensors


def compressed(strategy, block=None, activations=False):
    """A model as it comes from a checkpoint of compressed-tensors: FP8, decoded by a hook."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)).to(BF16).eval()

    def arguments(strategy, **more):
        return quantization.QuantizationArgs(
            num_bits=8, type="float", strategy=strategy, symmetric=True, **more
        )

    scheme = quantization.QuantizationScheme(
        targets=["Linear"],
        weights=arguments(strategy, **({"block_structure": block} if block else {})),
        input_activations=arguments("token", dynamic=True) if activations else None,
    )
    config = quantization.QuantizationConfig(
        config_groups={"all": scheme}, quantization_status="compressed", format="float-quantized"
    )
    quantization.apply_quantization_config(model, config)
    for layer in (model[0], model[2]):
        size = layer.weight.abs().float()
        if block:
            grid = size.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).amax((1, 3))
        else:
            grid = size.amax(1, keepdim=True) if strategy == "channel" else size.amax().reshape(1)
        layer.weight_scale.data = (grid / 448).to(BF16)
    compressors.ModelCompressor(quantization_config=config).compress_model(model)
    return model.requires_grad_(False)


STRATEGIES = {"tensor": ("tensor",), "channel": ("channel",), "block": ("block", [32, 32])}


@pytest.fixture(params=STRATEGIES.values(), ids=list(STRATEGIES))
def checkpoint(request):
    return compressed(*request.param)


def test_a_compressed_model_stays_compressed(checkpoint):
    before = {name: t.data_ptr() for name, t in checkpoint.state_dict().items()}
    fast = fxrewrite.rewrite(checkpoint, (X,))
    assert sites(fast) == [("fp8_matmul", "matched")] * 2
    ours = run(fast)
    assert sites(fast) == [("fp8_matmul", "matched")] * 2
    assert len(fast.report.captures) == 1
    for model in (checkpoint, fast):  # shared, and as they were
        assert {name: t.data_ptr() for name, t in model.state_dict().items()} == before
        assert model[0].weight.dtype == model[2].weight.dtype == FP8
    exact = X.double()
    for layer in (checkpoint[0], None, checkpoint[2]):
        if layer is None:
            exact = F.gelu(exact)
            continue
        scale = layer.weight_scale.double()
        if scale.dim() == 2 and scale.shape[1] > 1:
            scale = spread(scale, 32, 32, layer.weight.shape)
        exact = F.linear(exact, layer.weight.double() * scale, layer.bias.double())
    eager = run(checkpoint)  # which decodes it for good
    assert checkpoint[0].weight.dtype == BF16
    check(ours, eager, exact)


def test_copies_and_modules_called_alone_are_themselves(checkpoint):
    fast = copy.deepcopy(fxrewrite.rewrite(checkpoint, (X,)))
    fast[2].weight = nn.Parameter(torch.zeros(64, 96).to(FP8), requires_grad=False)
    assert torch.equal(run(fast), fast[2].bias.expand(2, 5, 64))
    alone = run(fast[0])
    assert not torch.equal(run(fxrewrite.rewrite(checkpoint)), fast[2].bias.expand(2, 5, 64))
    run(checkpoint)
    torch.testing.assert_close(alone, run(checkpoint[0]), rtol=0.02, atol=0.02)


def test_restore_puts_the_librarys_own_back(checkpoint):
    forward, hooks = checkpoint[0].forward, dict(checkpoint._forward_pre_hooks)
    fast = fxrewrite.rewrite(checkpoint, (X,), inplace=True)
    ours = run(fast)
    assert fxrewrite.restore(fast) is checkpoint
    assert checkpoint[0].forward == forward
    assert dict(checkpoint._forward_pre_hooks) == hooks
    torch.testing.assert_close(ours, run(checkpoint), rtol=0.02, atol=0.02)
    assert checkpoint[0].weight.dtype == BF16


def test_quantised_activations_are_left_to_the_library():
    model = compressed("channel", activations=True)
    fast = fxrewrite.rewrite(model, (X,))
    assert any("2 of 2 layers are not FP8 weights" in note for note in fast.report.notes)
    ours = run(fast)
    assert any("2 of 2 layers are not FP8 weights" in note for note in fast.report.notes)
    assert model[0].weight.dtype == FP8
    torch.testing.assert_close(ours, run(model), rtol=0.02, atol=0.02)


def test_another_version_of_the_library_is_left_to_itself(monkeypatch):
    model = compressed("channel")
    monkeypatch.setitem(sys.modules, "compressed_tensors.compressors.base", None)
    fast = fxrewrite.rewrite(model)
    assert any("not found in this version" in note for note in fast.report.notes)
    assert fast[0].forward.__func__ is model[0].forward.__func__


# ------------------------------------------------------------------------------------------ transformers


def fine_grained(n, k, block, bias=False):
    library = pytest.importorskip("transformers.integrations.finegrained_fp8")
    if not hasattr(library, "FP8Linear"):
        pytest.skip("this version has no FP8Linear")
    layer = library.FP8Linear(k, n, block_size=block, has_bias=bias)
    rows, columns = block or (n, k)
    generator = torch.Generator().manual_seed(n)
    grid = torch.rand(-(-n // rows), -(-k // columns), generator=generator) * 0.01 + 0.001
    layer.weight.data = (torch.randn(n, k, generator=generator) * 60).to(FP8)
    layer.weight_scale_inv.data = grid if block else grid.reshape(())
    if bias:
        layer.bias.data = torch.randn(n, generator=generator).to(BF16)
    return layer.requires_grad_(False)


@pytest.mark.parametrize("block", [(32, 32), (128, 128), (40, 48), None], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_fine_grained_layers_run_without_their_kernels(block, bias):
    model = nn.Sequential(fine_grained(96, 64, block, bias), nn.GELU())
    fast = fxrewrite.rewrite(model, (X,))
    ours = run(fast)
    assert sites(fast) == [("fp8_matmul", "matched")]
    assert any("activations are not quantised" in note for note in fast.report.notes)
    layer = model[0]
    assert fast[0].weight.data_ptr() == layer.weight.data_ptr()
    assert "forward" not in vars(layer)
    rows, columns = block or layer.weight.shape
    scale = spread(layer.weight_scale_inv.reshape(-1, 1) if block is None else layer.weight_scale_inv,
                   rows, columns, layer.weight.shape)  # fmt: skip
    decoded = layer.weight.double() * scale.double()
    exact = F.gelu(F.linear(X.double(), decoded, layer.bias.double() if bias else None))
    check(ours, F.gelu(F.linear(X, decoded.to(BF16), layer.bias)), exact)


def test_a_fine_grained_layer_in_place_and_back():
    model = nn.Sequential(fine_grained(96, 64, (32, 32)))
    fast = fxrewrite.rewrite(model, (X,), inplace=True)
    run(fast)
    fxrewrite.restore(fast)
    assert "forward" not in vars(model[0])


# ------------------------------------------------------------------------------------------------- torch


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, nn.LayerNorm(64, bias=False), **options).eval()


LEFT = torch.arange(10) >= torch.tensor([[10], [7], [3]])
INPUT = torch.randn(3, 10, 64, generator=torch.Generator().manual_seed(1))
PADDING = {
    "to the right": LEFT,
    "to the right, added": torch.zeros(3, 10).masked_fill(LEFT, float("-inf")),
    "to the left of one row": LEFT | (torch.arange(10) < torch.tensor([[2], [0], [0]])),
    "nowhere": torch.zeros(3, 10, dtype=torch.bool),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
@pytest.mark.parametrize("padding", PADDING.values(), ids=list(PADDING))
def test_padding_leaves_an_encoder_as_in_eager(padding):
    plain = encoder()
    with torch.no_grad():
        expected = plain(INPUT, src_key_padding_mask=padding)
        exact = encoder(enable_nested_tensor=False).double()(
            INPUT.double(),
            src_key_padding_mask=padding.double() if padding.is_floating_point() else padding,
        )
        fast = fxrewrite.rewrite(plain, (INPUT,), {"src_key_padding_mask": padding})
        found = fast(INPUT, src_key_padding_mask=padding)
    assert len(fast.report.matched) == len(fast.report.sites) == 10
    dropped = padding.bool()
    nested = not expected[dropped].any()
    assert nested == bool((dropped == LEFT).all() or not dropped.any())
    check(found[~dropped], expected[~dropped], exact[~dropped])
    check(found[dropped], expected[dropped], expected[dropped].double() if nested else exact[dropped])


@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
@pytest.mark.parametrize(
    "case", ["not enabled", "no fast path", "a mask as well", "in training", "for a gradient"]
)
def test_padding_of_an_encoder_that_nests_nothing(case):
    plain = encoder(enable_nested_tensor=case != "not enabled")
    call = {"src_key_padding_mask": LEFT}
    if case == "a mask as well":
        call["mask"] = torch.zeros(10, 10, dtype=torch.bool)
    plain.train(case == "in training")
    torch.backends.mha.set_fastpath_enabled(case != "no fast path")
    try:
        with torch.set_grad_enabled(case == "for a gradient"):
            expected = plain(INPUT, **call)
            found = fxrewrite.rewrite(plain)(INPUT, **call)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert expected[LEFT].any()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_is_given_back():
    plain = encoder()
    fxrewrite.restore(fxrewrite.rewrite(plain, inplace=True))
    assert "forward" not in vars(plain)
