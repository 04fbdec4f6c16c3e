"""``fxrewrite doctor``: what this machine has, and which kernels would run on it."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from collections.abc import Iterator

import click
from rich.console import Console
from rich.text import Text

from ..errors import require_torch
from .errors import FAILED, told_in_one_line
from .versions import version_of

GOOD, FAULT, PLAIN = "ok", "fault", ""
_COLOURS = {GOOD: "green", FAULT: "red", PLAIN: ""}
Finding = tuple[str, str, str]


@click.command()
def doctor() -> int:
    """Show what fxrewrite finds on this machine, and which implementation of each operator would run.

    Exit code: 0 fine, 1 something is wrong (marked "fault").
    """
    with told_in_one_line(debug=False):
        require_torch()
        findings = [*_software(), *_native(), *_cuda_library(), *_hardware()]
        choices = list(_choices())
    console = Console()
    with console.capture() as capture:
        _print(console, findings)
        console.print(Text("\nImplementations of common calls, as chosen here", "bold"))
        for call, rows in choices:
            console.print(Text(f"\n{call}"))
            _print(console, rows)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
    return FAILED if any(mark == FAULT for mark, _, _ in findings) else 0


def _print(console: Console, rows: list[Finding]) -> None:
    marks = max(len(mark) for mark, _, _ in rows)
    names = max(len(name) for _, name, _ in rows)
    indent = " " * (marks + names + 4)
    for mark, name, text in rows:
        # between words only: a path stays whole, to be copied
        lines = textwrap.wrap(
            text, max(console.width - len(indent), 20), break_long_words=False, break_on_hyphens=False
        )
        told = Text.assemble((mark.ljust(marks), _COLOURS.get(mark, "")), f"  {name.ljust(names)}  ")
        console.print(told.append(f"\n{indent}".join(lines)), soft_wrap=True)


def _software() -> Iterator[Finding]:
    import torch

    yield PLAIN, "fxrewrite", f"{version_of('fxrewrite')} in {os.path.dirname(os.path.dirname(__file__))}"
    yield PLAIN, "Python", f"{platform.python_version()} in {sys.prefix}"
    yield GOOD, "torch", f"{torch.__version__}, {torch.get_num_threads()} threads"
    backends = torch.compiler.list_backends()
    if "fxrewrite" in backends:
        yield GOOD, "torch.compile", 'backend="fxrewrite" is registered'
    else:
        yield FAULT, "torch.compile", 'backend="fxrewrite" is not registered: install fxrewrite with pip'
    for package in ("diffusers", "transformers"):
        yield PLAIN, package, version_of(package)


def _native() -> Iterator[Finding]:
    from .. import ops
    from ..ops.isa import active_isa, detected_isa
    from ..ops.library import native_library_path

    if ops.native_missing is not None:
        yield FAULT, "native library", f"{ops.native_missing}; every operator runs its reference"
        return
    path = native_library_path()
    newer = _newer_source(str(path))
    if newer:
        yield FAULT, "native library", f"{path} is older than {newer}: make native"
    else:
        yield GOOD, "native library", str(path)
    cap = os.environ.get("FXREWRITE_ISA")
    text = f"{active_isa()} in use, {detected_isa()} found"
    yield GOOD, "instruction set", text + (f", capped by FXREWRITE_ISA={cap}" if cap else "")


def _cuda_library() -> Iterator[Finding]:
    import torch

    from .. import ops
    from ..ops.library import native_library_path

    if torch.version.cuda is not None:
        needed = FAULT if torch.cuda.is_available() else PLAIN
        missing = ops.cuda_missing
        found = (needed, missing) if missing is not None else (GOOD, str(native_library_path("cuda")))
        yield found[0], "CUDA library", found[1]


def _newer_source(library: str) -> str:
    """A source file of the native library that was changed after it was built, "" where there is none."""
    root = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "native", "cpu")
    built = os.path.getmtime(library)
    for folder, _, files in os.walk(root):
        for file in files:
            path = os.path.join(folder, file)
            if file.endswith((".cpp", ".h")) and os.path.getmtime(path) > built:
                return os.path.relpath(path, os.path.dirname(os.path.dirname(root)))
    return ""


def _hardware() -> Iterator[Finding]:
    import torch

    yield PLAIN, "CPU", _cpu_name()
    yield PLAIN, "AMX", _amx()
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield PLAIN, "CUDA", f"{torch.version.cuda}: {', '.join(names)}"
    else:
        yield PLAIN, "CUDA", "no device" if torch.version.cuda else "torch is built without it"


def _cpu_name() -> str:
    return next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown"
    )


def _amx() -> str:
    """Has the CPU the tiles of AMX, and does the system let this process use them?"""
    if not any(line.startswith("flags") and " amx_bf16" in line for line in _cpuinfo()):
        return "this CPU has none"
    import ctypes

    # arch_prctl(ARCH_GET_XCOMP_SUPP): the states that the kernel hands out; bit 18 is the tile data
    supported = ctypes.c_uint64()
    arch_prctl, get_supported, tile_data = 158, 0x1021, 18
    failed = ctypes.CDLL(None).syscall(arch_prctl, get_supported, ctypes.byref(supported))
    allowed = not failed and supported.value >> tile_data & 1
    return (
        "found, and the system allows its tiles"
        if allowed
        else "found, but the system does not allow its tiles"
    )


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []


def _choices() -> Iterator[tuple[str, list[Finding]]]:
    """For a few common calls of each operator, the implementations in their order."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    yield from _choices_on("cpu")
    if torch.version.cuda is not None:
        with FakeTensorMode():  # so that no GPU is needed, nor its memory
            yield from _choices_on("cuda")


def _choices_on(device: str) -> Iterator[tuple[str, list[Finding]]]:
    import torch

    from ..report.words import at_high
    from ..rewriting.choice import Choice, arguments_of, choose

    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn

    def empty(*sizes: int, dtype: torch.dtype = bf16) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device=device)

    def rows(choice: Choice) -> list[Finding]:
        refused = [("refused", refusal.implementation, refusal.requirement) for refusal in choice.refusals]
        if choice.implementation is None:
            return [*refused, ("none", "", "no kernel of ours: the site is left as it is")]
        return [*refused, ("chosen", choice.implementation, at_high(choice.lowered))]

    calls: list[tuple[str, str, dict[str, torch.Tensor]]] = [
        (
            "linear",
            f"{name}, {count} of 4096 x 4096",
            {"x": empty(count, 4096, dtype=dtype), "weight": empty(4096, 4096, dtype=dtype)},
        )
        for name, dtype, count in (("bf16", bf16, 1), ("bf16", bf16, 1024), ("fp32", torch.float32, 1024))
    ]
    calls += [
        (
            "fp8_linear",
            f"{count} of 4096 x 4096",
            {"x": empty(count, 4096), "weight": empty(4096, 4096, dtype=fp8), "scale": empty(1)},
        )
        for count in (1, 1024)
    ]
    calls += [
        (
            "sdpa",
            f"bf16, 32 heads of 128, {queries} queries, 1024 keys",
            {
                "query": empty(1, 32, queries, 128),
                "key": empty(1, 32, 1024, 128),
                "value": empty(1, 32, 1024, 128),
            },
        )
        for queries in (1, 1024)
    ]
    calls.append(
        (
            "relu_linear_attention",
            "bf16, 70 heads of 32, 1024 tokens",
            {name: empty(1, 70, 1024, 32) for name in ("query", "key", "value")},
        )
    )
    for op, text, given in calls:
        schema = getattr(torch.ops.fxrewrite, op).default._schema
        text = text if device == "cpu" else f"{device}, {text}"
        yield f"{op} ({text})", rows(choose(op, arguments_of(schema, (), given)))
