"""The ``fxrewrite`` operator namespace: definition of ops and loading of the native kernels.

Schemas, fake kernels and references are Python; the native library only adds kernels for the CPU
dispatch key. Without it every op still works, through its reference.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

NAMESPACE = "fxrewrite"
_library = torch.library.Library(NAMESPACE, "DEF")

reference_calls: Counter[str] = Counter()
"""Calls by op that no native kernel was asked for: on another device, or without the library."""
_counting = threading.Lock()
_schemas: list[str] = []
_fakes: dict[Any, _Fake] = {}


def define(
    schema: str,
    *,
    reference: Callable[..., torch.Tensor],
    fake: Callable[..., torch.Tensor],
) -> torch._ops.OpOverload:
    """Define ``fxrewrite::<name>`` and ``fxrewrite::<name>_reference`` from one schema.

    ``reference`` is the meaning of the op in plain PyTorch: it runs wherever no native kernel
    does (another device, a dtype or shape that no kernel takes), it is what the tests hold the
    kernels against, and native kernels call it, by the ``_reference`` name, for inputs that they
    do not take. ``fake`` gives shape, dtype and strides of the result.
    """
    name = schema.split("(", 1)[0]
    _schemas.append(schema)
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.define(schema.replace(name, f"{name}_reference", 1))

    @functools.wraps(reference)
    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        with _counting:
            reference_calls[name] += 1
        return reference(*args, **kwargs)

    _library.impl(name, counted, "CompositeExplicitAutograd")
    _library.impl(f"{name}_reference", reference, "CompositeImplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    op: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _fakes[op] = _Fake(fake, {a.name: _types_of(a) for a in op._schema.arguments})
    return op


_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "bool": (bool,),
    "int": (int, torch.SymInt),
    "float": (float, int, torch.SymFloat, torch.SymInt),
    "str": (str,),
    "ScalarType": (torch.dtype,),
    "List[int]": (list, tuple),
}


@dataclass(frozen=True)
class _Fake:
    """A fake kernel, and the types of its arguments as the schema names them."""

    kernel: Callable[..., torch.Tensor]
    types: Mapping[str, tuple[type, ...]]


def _types_of(argument: Any) -> tuple[type, ...]:
    """The Python types that an argument of a schema may have."""
    name = str(argument.real_type)
    inner = name.removeprefix("Optional[")
    return _TYPES[name] if inner == name else (*_TYPES[inner[:-1]], type(None))


def fake_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the operator ``target`` gives for fake tensors, while their mode is active.

    A fake kernel of ours is called straight: in a graph with hundreds of sites the way through the
    dispatcher costs more than matching does. Raises `TypeError` for arguments that the schema forbids.
    """
    fake = _fakes.get(target)
    if fake is None:
        return target(*args, **kwargs)
    for name, value in [*zip(fake.types, args, strict=False), *kwargs.items()]:
        types = fake.types.get(name)
        if types is not None and not isinstance(value, types):
            wanted = " or ".join(t.__name__ for t in types)
            raise TypeError(f"{target}: argument {name} is a {type(value).__name__}, expected {wanted}")
    return fake.kernel(*args, **kwargs)


def signature() -> str:
    """A digest of all schemas: compiled code that calls ops of another signature is not ours."""
    return hashlib.sha256("\n".join(_schemas).encode()).hexdigest()[:16]


def native_library_path(device: str = "cpu") -> Path | None:
    """Where the native library for a device ("cpu", "cuda") is, or None when it has not been built.

    ``__path__`` of the package has both places where it can be: beside these sources, and, for an
    editable install, the site-packages directory to which the build installed it.
    """
    package = sys.modules[__name__.partition(".")[0]]
    roots = [Path(root) for root in package.__path__] + [Path(__file__).parents[1]]
    for root in [*roots, *(Path(site) / "fxrewrite" for site in sys.path)]:
        for found in sorted(root.glob(f"_native/libfxrewrite_{device}.*")):
            return found
    return None


@functools.cache
def load_native() -> str | None:
    """Load the native kernels, once. Returns None when loaded, else why not, in one line.

    Raises `ValueError` when the environment variable FXREWRITE_ISA names no instruction set.
    """
    if os.environ.get("FXREWRITE_ISA") == "none":
        return "switched off by FXREWRITE_ISA=none"
    path = native_library_path()
    if path is None:
        return "the native library is not built (pip install fxrewrite with a C++20 compiler)"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        return f"{path.name} does not load: {str(error).splitlines()[0]}"
    try:
        call_native("_isa")  # chooses the kernels now, so that a wrong name is an error here
    except AttributeError:
        return f"{path.name} is another library, or of another version: it has no operator _isa"
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    return None


@functools.cache
def load_cuda() -> str | None:
    """Load the CUDA kernels, once. Returns None when loaded, else why not, in one line."""
    if os.environ.get("FXREWRITE_ISA") == "none":
        return "switched off by FXREWRITE_ISA=none"
    if torch.version.cuda is None:  # no look at the devices: that would start CUDA in the importing process
        return "torch is built without CUDA"
    path = native_library_path("cuda")
    if path is None:
        return "the CUDA library is not built (pip install fxrewrite with a CUDA toolkit, nvcc, at hand)"
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        return f"{path.name} does not load: {str(error).splitlines()[0]}"
    return None


def allow_bf16_operands(allowed: bool) -> None:
    """Tell the loaded native libraries whether float32 operands may be rounded to bfloat16 in this thread."""
    for missing, name in ((load_native(), ""), (load_cuda(), "_cuda")):
        if missing is None:
            call_native(f"_allow{name}_bf16_operands", allowed)


def call_native(name: str, *args: Any) -> Any:
    """Call a bookkeeping op of the native library (``_isa``, ``_counters`` ...)."""
    return getattr(getattr(torch.ops, NAMESPACE), name)(*args)
