"""The contract check must pass what rounds like eager, and fail everything else."""

import dataclasses

import pytest
import torch

from tests.support import contract
from tests.support.contract import ContractError, check, half_ulp, leaves


def case(dtype=torch.bfloat16, shape=(6, 40, 64), noise=0.01, seed=0):
    """(exact, eager, ours): two independent runs with the same size of error."""
    g = torch.Generator().manual_seed(seed)
    exact = torch.randn(shape, generator=g, dtype=torch.float64)
    eager, ours = (
        (exact + noise * torch.randn(shape, generator=g, dtype=torch.float64)).to(dtype) for _ in "ab"
    )
    return exact, eager, ours


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_equally_wrong_passes(dtype):
    exact, eager, ours = case(dtype)
    (score,) = check(ours, eager, exact)
    assert 0.95 < score.ratio < 1.05
    assert not score.bit_equal


def test_bit_equal_passes_whatever_the_reference_is():
    _, eager, _ = case()
    (score,) = check(eager.clone(), eager, torch.zeros(eager.shape, dtype=torch.float64))
    assert score.bit_equal
    assert score.ratio == 1.0


@pytest.mark.parametrize(("factor", "good"), [(1.2, True), (1.3, False)])
def test_rms_bound_is_a_quarter_above_eager(factor, good):
    exact, eager, _ = case(torch.float32)
    _, _, other = case(torch.float32, seed=0)
    ours = (exact + factor * (other.double() - exact)).float()
    if good:
        check(ours, eager, exact)
    else:
        with pytest.raises(ContractError, match=r"RMS error .* allowed, ratio 1\.3"):
            check(ours, eager, exact)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_places(wrong):
    exact, eager, ours = case()
    ours[2, 3, 4] = wrong
    with pytest.raises(ContractError, match="1 of 15360 places differ"):
        check(ours, eager, exact)
    eager[2, 3, 5] = wrong  # as many, elsewhere
    with pytest.raises(ContractError, match="2 of 15360 places differ"):
        check(ours, eager, exact)
    eager[2, 3, 4] = ours[2, 3, 5] = wrong
    check(ours, eager, exact)


def test_sign_of_infinity():
    exact, eager, ours = case()
    eager[0, 0, 0], ours[0, 0, 0] = torch.inf, -torch.inf
    with pytest.raises(ContractError, match="inf"):
        check(ours, eager, exact)


def test_small_bias_is_found_where_rms_does_not_see_it():
    exact, eager, ours = case(torch.float32)
    biased = ours + 0.2 * 0.01  # a fifth of the error's size: RMS grows by 2 %
    assert contract.score(ours, eager, exact)[0].ok
    with pytest.raises(ContractError, match="drift in the mean"):
        check(biased, eager, exact)


def test_shrinking_is_found():
    exact, eager, ours = case(torch.float32)
    with pytest.raises(ContractError):
        check(ours * 0.99, eager, exact)


def test_bad_row_is_found_in_a_large_tensor():
    exact, eager, ours = case(torch.float32, shape=(5000, 64))
    ours[4999] += 0.2 * torch.randn(64, generator=torch.Generator().manual_seed(5))
    assert (ours.double() - exact).square().mean().sqrt() < 1.25 * 0.01
    with pytest.raises(ContractError, match=r"worst row .row 4999 of 5000"):
        check(ours, eager, exact)


def test_errors_shared_by_columns_are_no_drift():
    g = torch.Generator().manual_seed(3)
    exact = torch.randn(300, 32, generator=g, dtype=torch.float64)
    eager, ours = (exact + 0.01 * torch.randn(1, 32, generator=g, dtype=torch.float64) for _ in "ab")
    scale = (eager - exact).square().mean().sqrt() / (ours - exact).square().mean().sqrt()
    check((exact + (ours - exact) * scale).float(), eager.float(), exact)


def test_rounding_floor_where_eager_is_exact():
    exact = torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = exact.to(torch.bfloat16).double()  # representable: eager has no error at all
    eager = exact.to(torch.bfloat16)
    neighbour = torch.where(torch.rand(64, 64, generator=torch.Generator().manual_seed(1)) < 0.2, 1, 0)
    ours = (exact + 2 * neighbour * half_ulp(exact, torch.bfloat16)).to(torch.bfloat16)
    with pytest.raises(ContractError):
        check(
            (exact + 2 * half_ulp(exact, torch.bfloat16)).to(torch.bfloat16), eager, exact
        )  # one ulp everywhere
    signs = torch.where(torch.arange(64 * 64).reshape(64, 64) % 2 == 0, 1.0, -1.0)
    ours = (exact + 2 * signs * neighbour * half_ulp(exact, torch.bfloat16)).to(torch.bfloat16)
    assert not check(ours, eager, exact)[0].bit_equal  # a fifth of them, an ulp to either side


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_ulp(dtype):
    values = torch.tensor([1.0, 1.5, 2.0, -3.0, 1000.0, 1e-3], dtype=torch.float64).to(dtype)
    up = torch.nextafter(values.abs().float(), torch.tensor(torch.inf)) if dtype is torch.float32 else None
    if up is None:
        bits = values.abs().view(torch.int16) + 1
        up = bits.view(dtype)
    gap = up.double() - values.abs().double()
    assert torch.equal(half_ulp(values.double(), dtype), gap / 2)


def test_shape_dtype_structure_and_plain_values():
    exact, eager, ours = case()
    with pytest.raises(ContractError, match="shape"):
        check(ours[:, :5], eager, exact)
    with pytest.raises(ContractError, match="dtype"):
        check(ours.float(), eager, exact)
    with pytest.raises(ContractError, match="structure"):
        check({"a": ours}, {"b": eager}, {"b": exact})
    with pytest.raises(ContractError, match="list, eager has tuple"):
        check([ours], (eager,), (exact,))
    with pytest.raises(ContractError, match="3, eager has 2"):
        check((ours, 3), (eager, 2), (exact, 2))
    with pytest.raises(ContractError, match="has a tensor"):
        check((3,), (eager,), (exact,))


def test_integers_must_be_equal():
    a = torch.arange(6)
    check(a.clone(), a, a)
    with pytest.raises(ContractError, match=r"1 of 6 torch\.int64 values differ"):
        check(torch.tensor([0, 1, 2, 3, 4, 6]), a, a)


def test_leaves_reach_into_dataclasses_caches_and_objects():
    @dataclasses.dataclass
    class Out:
        sample: torch.Tensor
        extra: dict

    class Layer:
        keys, values = torch.ones(1), torch.zeros(1)

    class Cache:
        layers = None

    cache = Cache()
    cache.layers = [Layer()]
    found = dict(leaves((Out(torch.ones(2), {"n": 3}), cache)))
    assert set(found) == {
        "output[0].sample", "output[0].extra['n']", "output[1].layers[0].keys", "output[1].layers[0].values",
    }  # fmt: skip


def test_pooling_adds_squares():
    exact, eager, ours = case()
    (one,), (two,) = contract.score(ours, eager, exact), contract.score(eager, ours, exact)
    one.add(two)
    assert one.count == 2 * exact.numel()
    assert one.ours == pytest.approx(one.eager)
