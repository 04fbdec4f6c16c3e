"""Example inputs written on the command line: ``--input hidden_states=bf16[1,4096,64]``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from ..errors import UsageError

FORM = "NAME=DTYPE[SIZE,...] such as x=bf16[1,4096,64], or NAME=VALUE such as use_cache=False"
SHORT = {
    "bf16": "bfloat16",
    **{f"{letter}{bits}": f"float{bits}" for letter in ("f", "fp") for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
}
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


def parse_inputs(texts: Iterable[str]) -> dict[str, Any]:
    """Inputs by name: tensors on the meta device, or plain values. Raises `UsageError` for another form."""
    return dict(_parse(text) for text in texts)


def _parse(text: str) -> tuple[str, Any]:
    import torch

    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name.isidentifier():
        raise UsageError(f"--input {text!r}: expected {FORM}")
    tensor = _TENSOR.fullmatch(value.strip())
    if tensor is None:
        try:
            return name, ast.literal_eval(value.strip())
        except (ValueError, SyntaxError) as error:
            raise UsageError(f"--input {text!r}: expected {FORM}") from error
    sizes = [int(size) for size in tensor["sizes"].split(",") if size.strip()]
    return name, torch.empty(sizes, dtype=dtype_named(tensor["dtype"], f"--input {text!r}"), device="meta")


def dtype_named(name: str, where: str) -> Any:
    """The torch.dtype that ``name`` ("bf16", "bfloat16") stands for; `UsageError` says ``where`` not."""
    import torch

    found = getattr(torch, SHORT.get(name, name), None)
    if not isinstance(found, torch.dtype):
        raise UsageError(
            f"{where}: unknown dtype {name!r}: expected {', '.join(SHORT)}, bool or torch's name"
        )
    return found
