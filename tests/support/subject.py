"""What the harnesses test: fxrewrite, or a stand-in with the same face that proves the harness itself.

A subject is ``(model, args, kwargs) -> (callable, report or None)``.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

KINDS = ("sdpa", "linear", "fp8_matmul", "linear_attention")


def _fxrewrite(model: nn.Module, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], Any]:
    import fxrewrite

    new = fxrewrite.rewrite(model, args, kwargs)
    return new, new.report


def _backend(model: nn.Module, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], Any]:
    return torch.compile(model, backend="fxrewrite"), None


def _identity(model: nn.Module, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], Any]:
    return model, None


def _linear(x, weight, bias=None):
    raise NotImplementedError  # only its signature is used


class _OtherOrder(TorchFunctionMode):
    """Linear layers summed over K in two halves: legal, and rounded differently from eager."""

    bias = 0.0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.linear:
            bound = inspect.signature(_linear).bind(*args, **kwargs)
            bound.apply_defaults()
            x, w, b = bound.args
            plain = type(x) is torch.Tensor and type(w) in (torch.Tensor, nn.Parameter) and w.dtype == x.dtype
            if plain and x.shape[-1] > 1 and x.dtype in (torch.float32, torch.bfloat16):
                half = x.shape[-1] // 2
                out = F.linear(x[..., :half].float(), w[:, :half].float()) + F.linear(
                    x[..., half:].float(), w[:, half:].float(), None if b is None else b.float()
                )
                return (out + self.bias * out.std(unbiased=False)).to(x.dtype)
        return func(*args, **kwargs)


class _Biased(_OtherOrder):
    bias = 0.02


def _under(mode: type[TorchFunctionMode]):
    def subject(model: nn.Module, args: tuple, kwargs: dict) -> tuple[Callable[..., Any], Any]:
        def run(*a, **k):
            with mode():
                return model(*a, **k)

        return run, None

    return subject


SUBJECTS: dict[str, Callable[[nn.Module, tuple, dict], tuple[Callable[..., Any], Any]]] = {
    "fxrewrite": _fxrewrite,
    "backend": _backend,  # torch.compile(backend="fxrewrite"): no report
    "identity": _identity,
    "other-order": _under(_OtherOrder),
    "biased": _under(_Biased),
}


def site_counts(report: Any) -> dict[str, dict[str, int]]:
    """{kind: {"matched": n, "rejected": n}} of a report."""
    counts: Counter[tuple[str, str]] = Counter((site.kind, site.status) for site in report.sites)
    return {kind: {s: counts[kind, s] for s in ("matched", "rejected")} for kind in KINDS}


def silent_rejections(report: Any) -> list[str]:
    """Rejected sites without a reason: there must be none."""
    rejected = (site for site in report.sites if site.status == "rejected")
    return [f"{site.kind} {site.id}" for site in rejected if not site.reason.strip()]
