"""Capture: any model becomes functional, pre-dispatch ATen.

In this form ``linear``, ``scaled_dot_product_attention``, ``matmul`` and ``softmax`` are still
whole, and every Python spelling has become one of few. This is the only module of the package that
touches private APIs of torch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import operator
import re
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
import torch._dynamo
import torch._guards
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy import functions as sizes
from torch.utils._sympy.printers import PythonPrinter

from .casting import trace_casts
from .copies import deep_copy
from .decompositions import DECOMPOSITIONS
from .errors import CaptureError
from .layers import write_out_layers

aten = torch.ops.aten

ShapeEnv = torch.fx.experimental.symbolic_shapes.ShapeEnv

# ------------------------------------------------------------------------------------ Dynamo graphs


def from_dynamo(gm: fx.GraphModule) -> fx.GraphModule:
    """The functional pre-dispatch ATen graph of a graph that Dynamo hands to its backend.

    Placeholders keep their order and number. Raises CaptureError where tracing fails.
    """
    examples = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    if any(
        is_traceable_wrapper_subclass(n.meta.get("example_value"))
        for n in gm.graph.output_node().all_input_nodes
    ):
        raise CaptureError("a result is a tensor subclass")
    wrappers = {i: _Wrapper(e) for i, e in enumerate(examples) if is_traceable_wrapper_subclass(e)}
    flat = [t for i, e in enumerate(examples) for t in (wrappers[i].tensors() if i in wrappers else [e])]
    mode = next((e.fake_mode for e in flat if isinstance(e, FakeTensor)), None)
    context = contextlib.nullcontext() if mode is None else mode

    def run(*tensors: Any) -> Any:
        remaining = iter(tensors)
        inputs = [
            wrappers[i].rebuilt(remaining) if i in wrappers else next(remaining) for i in range(len(examples))
        ]
        return _Interpreter(gm).run(*inputs)

    # `tracing(None)`: the compile's own tracing context belongs to another fake mode than the one
    # of these examples. `preserve_node_meta`: stack traces and module paths, which reports need.
    try:
        with torch._guards.tracing(None), context, preserve_node_meta(), torch.no_grad():
            traced = make_fx(run, decomposition_table=DECOMPOSITIONS, pre_dispatch=True, tracing_mode="real")(
                *flat
            )
    except Exception as error:  # any failure of tracing leaves the graph as it is, reported
        raise CaptureError(f"{type(error).__name__}: {first_line(error)}") from error
    for node in traced.graph.find_nodes(op="get_attr"):
        if isinstance(getattr(traced, node.target, None), FakeTensor):
            hidden = sorted({type(e).__name__ for e in examples if is_traceable_wrapper_subclass(e)})
            raise CaptureError(
                f"tensors inside of {', '.join(hidden)} are no inputs of the graph"
                if hidden
                else "it reads a tensor past the dispatcher, as `.data` does: a trace would hold a constant"
            )
    _wrap_placeholders(traced, examples, wrappers)
    for placeholder, example in zip(traced.graph.find_nodes(op="placeholder"), examples, strict=True):
        placeholder.meta["requires_grad"] = isinstance(example, torch.Tensor) and example.requires_grad
    return canonical_graph(traced)


class _Interpreter(fx.Interpreter):
    """Runs a Dynamo graph to trace it, in the regions of autocast that the graph has.

    The tracer only writes them down: outside of them dtypes are not those of the run, and a cast
    (``x.float()``) to the dtype that ``x`` seems to have would be traced as ``x`` itself.
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._regions: list[torch.autocast] = []
        try:
            return super().run(*args, **kwargs)
        finally:
            while self._regions:  # of a trace that failed
                self._leave()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super().call_function(target, args, kwargs)
        if target is torch.amp.autocast_mode._enter_autocast:
            region = torch.autocast(*args)
            with torch._C.DisableTorchFunction():  # it is written down already
                region.__enter__()
            self._regions.append(region)
        elif target is torch.amp.autocast_mode._exit_autocast:
            self._leave()
        return result

    def _leave(self) -> None:
        with torch._C.DisableTorchFunction():
            self._regions.pop().__exit__(None, None, None)


class _Wrapper:
    """A tensor subclass that wraps other tensors (a quantised weight, say), taken apart."""

    def __init__(self, value: Any) -> None:
        names, self.context = value.__tensor_flatten__()
        self.type, self.size, self.stride = type(value), value.size(), value.stride()
        self.parts: dict[str, Any] = {}
        for name in names:
            part = getattr(value, name)
            self.parts[name] = _Wrapper(part) if is_traceable_wrapper_subclass(part) else part

    def tensors(self) -> Iterator[torch.Tensor]:
        """The plain tensors inside, in order."""
        for part in self.parts.values():
            yield from part.tensors() if isinstance(part, _Wrapper) else [part]

    def rebuilt(self, tensors: Iterator[Any]) -> Any:
        """The same wrapper around other tensors, taken from ``tensors``."""
        inner = {
            n: p.rebuilt(tensors) if isinstance(p, _Wrapper) else next(tensors) for n, p in self.parts.items()
        }
        return self.type.__tensor_unflatten__(inner, self.context, self.size, self.stride)

    def read(self, graph: fx.Graph, wrapper: fx.Node, placeholders: Iterator[fx.Node]) -> None:
        """Replace the placeholders of the tensors inside by nodes that read them from ``wrapper``."""
        for name, part in self.parts.items():
            node = graph.call_function(getattr, (wrapper, name))
            if isinstance(part, _Wrapper):
                part.read(graph, node, placeholders)
            else:
                flat = next(placeholders)
                node.meta.update(flat.meta)
                flat.replace_all_uses_with(node)
                graph.erase_node(flat)


def _wrap_placeholders(
    traced: fx.GraphModule, examples: Sequence[Any], wrappers: Mapping[int, _Wrapper]
) -> None:
    """Give ``traced``, a graph over the tensors inside of wrappers, the wrappers for placeholders."""
    if not wrappers:
        return
    graph = traced.graph
    placeholders = iter(graph.find_nodes(op="placeholder"))
    body = next(n for n in graph.nodes if n.op != "placeholder")
    for index, example in enumerate(examples):
        if index not in wrappers:
            next(placeholders)
            continue
        inside = [next(placeholders) for _ in wrappers[index].tensors()]
        with graph.inserting_before(inside[0]):
            wrapper = graph.placeholder(f"wrapper_{index}")
        wrapper.meta["val"] = example
        with graph.inserting_before(body):
            wrappers[index].read(graph, wrapper, iter(inside))
    traced.recompile()


def has_inner_tensors(gm: fx.GraphModule) -> bool:
    """Is an input of this Dynamo graph a subclass around tensors: a DTensor, say?"""
    examples = (n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder"))
    return any(is_traceable_wrapper_subclass(e) for e in examples)


def on_inner_tensors(
    gm: fx.GraphModule, inputs: Sequence[Any], rewrite: Callable[[fx.GraphModule], fx.GraphModule]
) -> Callable[..., Any]:
    """Compile a Dynamo graph through AOTAutograd, which takes tensors out of subclasses and puts results
    back; ``rewrite`` gets the functional ATen graph on the inner tensors, and what it returns runs.

    Raises CaptureError where AOTAutograd fails, and where a gradient is needed.
    """
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs):
        raise CaptureError("a gradient is needed through tensors inside of a subclass")
    problem: BaseException | None = None

    def compiler(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
        nonlocal problem
        try:
            return make_boxed_func(rewrite(_recompose(graph)).forward)
        except Exception as error:
            problem = error
            raise

    try:
        compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler)(gm, list(inputs))
    except Exception as error:  # any failure of tracing leaves the graph as it is, reported
        if problem is not None:
            raise problem from None
        raise CaptureError(f"{type(error).__name__}: {first_line(error)}") from error
    return compiled


def _recompose(gm: fx.GraphModule) -> fx.GraphModule:
    """Put the fused attention back in the place of the CPU kernel that it was dispatched to, in place."""
    kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
    for node in gm.graph.find_nodes(op="call_function", target=kernel):
        (out,) = node.users if len(node.users) == 1 else (None,)
        if out is None or out.target is not operator.getitem or out.args[1] != 0:
            continue
        given = list(node.args)
        query, key, value, dropout, is_causal = given + [0.0, False][len(given) - 3 :]
        with gm.graph.inserting_before(node):
            call = gm.graph.call_function(
                aten.scaled_dot_product_attention.default,
                (query, key, value, node.kwargs.get("attn_mask"), dropout, is_causal),
                {"scale": node.kwargs.get("scale")},
            )
        call.meta.update({**node.meta, "val": out.meta["val"]})
        out.replace_all_uses_with(call)
        gm.graph.erase_node(out)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def cached_as(key: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which torch's compile caches keep and find artifacts under ``key`` too."""
    config: Any = torch.compiler.config
    tag = f"{config.cache_key_tag} {key}".strip()
    context: contextlib.AbstractContextManager[Any] = config.patch(cache_key_tag=tag)
    return context


def first_line(error: BaseException) -> str:
    """The first line of an exception's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# ---------------------------------------------------------------------------------- ExportedProgram


def from_exported(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same program with a functional graph in which composites are still whole."""
    decomposed: torch.export.ExportedProgram = program.run_decompositions({})
    return decomposed


def enforced_sizes(
    program: torch.export.ExportedProgram,
) -> tuple[dict[str, tuple[float, float]], frozenset[str]]:
    """What a program checks of its inputs when it runs: the ranges of its symbols by name; and the names of
    those of which it checks nothing.

    A lower bound of 2 is not checked: sizes 0 and 1 run. Nor is anything of a derived size (``4 * k``), so
    that k need not even be an integer.
    """
    ranges = {}
    for symbol, found in program.range_constraints.items():
        if symbol.is_Symbol:
            low, high = _bounds(found)
            ranges[symbol.name] = (low if low > 2 else 0, high)
    derived: set[str] = set()
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else ():
            expression = symbolic_expression(size)
            if isinstance(expression, sympy.Basic) and not expression.is_Symbol:
                derived.update(symbol.name for symbol in expression.free_symbols)
    return ranges, frozenset(derived)


@contextlib.contextmanager
def renaming_outputs(program: torch.export.ExportedProgram) -> Iterator[None]:
    """While active, a node that is replaced in the program's graph is replaced in its signature too."""
    hook = program.graph_signature.get_replace_hook()
    with program.graph_module._set_replace_hook(hook):
        yield


# -------------------------------------------------------------------------------------- graph chores


def canonical_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Remove from ``gm``, in place, what hides sites and means nothing."""
    for node in list(gm.graph.nodes):
        # Has no result, and gives every cast a second user.
        if node.target is aten._assert_tensor_metadata.default:
            gm.graph.erase_node(node)
    _inline_regions(gm)
    gm.recompile()
    return gm


def _inline_regions(gm: fx.GraphModule) -> None:
    """Inline the bodies of regions that switch autocast off: they cut sites in half."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or getattr(node.target, "__name__", "") != "wrap_with_autocast":
            continue
        _device, _dtype, enabled, _cache, body_ref, *args = node.args
        if enabled:
            continue
        body = cast(fx.GraphModule, getattr(gm, body_ref.target))
        environment = dict(zip(body.graph.find_nodes(op="placeholder"), args, strict=True))
        results: Any = None
        with gm.graph.inserting_before(node):
            for inner in body.graph.nodes:
                if inner.op == "output":
                    results = fx.map_arg(inner.args[0], environment.__getitem__)
                elif inner.op == "get_attr":
                    name = f"{body_ref.target}.{inner.target}"
                    environment[inner] = gm.graph.get_attr(name)
                    environment[inner].meta.update(inner.meta)
                elif inner.op != "placeholder":
                    environment[inner] = gm.graph.node_copy(inner, environment.__getitem__)
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                gm.graph.erase_node(user)
        if not isinstance(results, (tuple, list)):
            node.replace_all_uses_with(results)
        gm.graph.erase_node(node)
    gm.graph.lint()


def in_autocast(gm: fx.GraphModule) -> set[fx.Node]:
    """The nodes that autocast changes: those inside of its regions in the graph, or every node where a
    region surrounds the graph.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return set(gm.graph.nodes)
    inside: set[fx.Node] = set()
    regions: list[dict[str, bool]] = [{}]  # by device: many are there to switch it off, or for another device
    for node in gm.graph.nodes:
        if node.target is torch.amp.autocast_mode._enter_autocast:
            device, enabled = node.args[0], node.args[2] if len(node.args) > 2 else True
            regions.append({**regions[-1], device: bool(enabled)})
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            regions.pop()
        elif any(regions[-1].get(device) for device in _devices(node)):
            inside.add(node)
    return inside


def _devices(node: fx.Node) -> set[str]:
    """The kinds of device of a node's operands."""
    values = (n.meta.get("val") for n in node.all_input_nodes)
    return {value.device.type for value in values if isinstance(value, torch.Tensor)}


def symbolic_expression(value: Any) -> Any:
    """The sympy expression of a SymInt, or the int itself; None for a size that is no number (ragged)."""
    return getattr(value.node, "expr", None) if isinstance(value, torch.SymInt) else value


def example_size(value: Any) -> int:
    """The size that a SymInt had when it was captured (1 where it has none), or the int itself."""
    if isinstance(value, torch.SymInt):
        return int(value.node.hint) if value.node.has_hint() else 1
    return int(value)


@functools.lru_cache(maxsize=4096)
def expression_text(expression: Any) -> str:
    """A sympy expression, or an int, as Python has it: "s0 // 2"."""
    symbolic = isinstance(expression, sympy.Basic)
    return str(PythonPrinter().doprint(expression) if symbolic else expression)


def shape_env_of(*values: Any) -> ShapeEnv | None:
    """The ShapeEnv that the SymInts among ``values`` belong to, or None."""
    symbolic = (value.node for value in values if isinstance(value, torch.SymInt))
    return next((node.shape_env for node in symbolic if hasattr(node, "shape_env")), None)


@contextlib.contextmanager
def adding_guards() -> Iterator[None]:
    """A context in which conditions that are evaluated become guards, within one that suppresses that."""
    before = getattr(symbolic_shapes.TLS, "suppress_guards", False)
    symbolic_shapes.TLS.suppress_guards = False
    try:
        yield
    finally:
        symbolic_shapes.TLS.suppress_guards = before


def evaluated(question: Callable[[], bool]) -> bool | None:
    """The answer with the sizes at hand; None where only the run knows it.

    As everywhere, the ShapeEnv records the answer as a guard, unless guards are suppressed.
    """
    try:
        return question()
    except GuardOnDataDependentSymNode:
        return None


@dataclass(frozen=True)
class ShapeFacts:
    """What a ShapeEnv knows: conditions on its symbols (sympy), and inclusive ranges by their names."""

    conditions: tuple[Any, ...]
    ranges: Mapping[str, tuple[float, float]]


def shape_facts(environment: ShapeEnv) -> ShapeFacts:
    """Guards, runtime asserts, replacements and ranges. Nothing is added to the environment."""
    asserts = (a.expr for found in environment.deferred_runtime_asserts.values() for a in found)
    equal = (sympy.Eq(*pair, evaluate=False) for pair in environment.replacements.items())
    return ShapeFacts(
        (*(guard.expr for guard in environment.guards), *asserts, *equal),
        {s.name: _bounds(found) for s, found in environment.var_to_range.items() if found.is_int},
    )


def facts_version(environment: ShapeEnv) -> object:
    """Equal for equal facts."""
    return (
        len(environment.guards),
        environment.num_deferred_runtime_asserts,
        len(environment.replacements),
        tuple(environment.var_to_range.values()),
    )


def _bounds(found: Any) -> tuple[float, float]:
    low, high = (int(end) if end.is_Integer else None for end in (found.lower, found.upper))
    return (-math.inf if low is None else low, math.inf if high is None else high)


def integer_function(expression: Any) -> str | None:
    """Where a sympy expression is a call of a function of integers, which: "quotient", "remainder" ..."""
    return _INTEGER_FUNCTIONS.get(type(expression))


_INTEGER_FUNCTIONS: dict[type, str] = {
    sizes.FloorDiv: "quotient",
    sizes.CleanDiv: "quotient",
    sizes.Mod: "remainder",
    sizes.PythonMod: "remainder",
    sizes.Max: "largest",
    sizes.Min: "smallest",
    sizes.PowByNatural: "power",
}


def shape_env_of_graph(gm: fx.GraphModule) -> ShapeEnv | None:
    """The ShapeEnv of the values in the graph's metadata, or None."""
    mode = fake_mode_of(gm)
    return None if mode is None else mode.shape_env


def fake_mode_of(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The fake mode that the values in the graph's metadata belong to."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def computing() -> contextlib.AbstractContextManager[Any]:
    """A context in which operators on real tensors compute, a surrounding fake mode notwithstanding."""
    context: contextlib.AbstractContextManager[Any] = torch._subclasses.fake_tensor.unset_fake_temporarily()
    return context


# ------------------------------------------------------------------------------------------- dry run


@dataclass
class FakeCall:
    """A model and its arguments with every tensor replaced by a fake one: nothing is computed."""

    mode: FakeTensorMode
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: list[str]


def fake_call(model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> FakeCall:
    """Copy ``model`` and arguments with fake tensors in place of all tensors.

    Tensors on the meta device become fake CPU tensors, so that a configuration can be scanned
    without its weights. Neither the model nor the arguments are changed.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    originals = (model, tuple(args), dict(kwargs))
    memo: dict[int, Any] = {id(t): _fake_tensor(mode, t) for t in reachable_tensors(originals)}
    probe, fake_args, fake_kwargs = deep_copy(originals, memo)
    notes = write_out_layers(probe)
    trace_casts(probe)
    return FakeCall(mode, probe, fake_args, fake_kwargs, notes)


def call_compiled(compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call what ``torch.compile`` made, so that what it compiles now sees hooks that are added later.

    Dynamo leaves out the guards on modules without hooks unless told otherwise. The setting belongs to
    this thread, and to this call.
    """
    config = torch._dynamo.config
    before = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = False
    try:
        return compiled(*args, **kwargs)
    finally:
        config.skip_nnmodule_hook_guards = before


def computes_tangents() -> bool:
    """Is forward-mode differentiation on? It is so under ``torch.no_grad()`` too."""
    return torch.autograd.forward_ad._current_level >= 0


def uncompilable() -> str:
    """Why Dynamo must not see a call now, "" where it may.

    Under a TorchDispatchMode it compiles nothing, and leaves the code alone ever after. A hook on all
    modules, registered since a graph was compiled, would not run.
    """
    if torch._C._len_torch_dispatch_stack() > 0:
        return "a TorchDispatchMode or a tracer is active"
    if torch.fx._symbolic_trace.is_fx_symbolic_tracing():
        return "torch.fx traces"  # in whatever thread: torch.compile raises then
    if torch.nn.modules.module._has_any_global_hook():
        return "a hook on all modules is registered"
    return ""


def being_traced() -> bool:
    """Is the caller being traced into a graph, by Dynamo or ``torch.jit.trace``?

    ``torch.compiler.is_compiling()`` will not do: it is True in all threads while one of them compiles.
    """
    return torch.compiler.is_dynamo_compiling() or torch._C._get_tracing_state() is not None


class GraphBreaks:
    """The graph breaks that Dynamo reports from the creation of this object on, and the functions that it
    leaves to Python as a whole: those with a break inside of a loop, say.
    """

    def __init__(self) -> None:
        self._before = self._now()

    def take(self) -> list[str]:
        """The reasons since the last call, a line each."""
        now = self._now()
        new, self._before = now - self._before, now
        return [
            f"{what}, {count} times: {_first_words(reason)}" for (what, reason), count in sorted(new.items())
        ]

    @staticmethod
    def _now() -> Counter[tuple[str, str]]:
        counters = torch._dynamo.utils.counters
        found = Counter({("graph break", reason): n for reason, n in counters["graph_break"].items()})
        for reason, count in counters["unimplemented"].items():
            if skipped := _SKIPPED.search(reason):
                found[f"{skipped[1]} runs as it is", reason] += count
        return found


_SKIPPED = re.compile(r"frame skipped: (\w+)")


def _first_words(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else reason


def run_fake(call: FakeCall, backend: Callable[..., Any]) -> str | None:
    """Run the model through Dynamo on fake tensors. Returns what stopped it, None if nothing did."""
    call.model.forward = torch.compile(with_own_code(call.model.forward), backend=backend)
    try:
        with call.mode:
            call.model(*call.args, **call.kwargs)
    except Exception as error:  # whatever stops the dry run is what it reports
        return _what_was_wrong(error)
    return None


_INNER = re.compile(r"got (?P<type>\w+)\((?P<quote>['\"])(?P<text>.*)(?P=quote)\)\s*$", re.MULTILINE)


def _what_was_wrong(error: BaseException) -> str:
    """The error that the model itself would raise, out of what Dynamo wrapped around it."""
    while isinstance(error, torch._dynamo.exc.TorchDynamoException) and error.__cause__ is not None:
        error = error.__cause__
    inner = _INNER.search(str(error))
    return f"{inner['type']}: {inner['text']}" if inner else f"{type(error).__name__}: {first_line(error)}"


def with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` with a code object of its own.

    Dynamo keeps what it compiled, and counts recompilations, by code object: sharing one, models of
    the same class would use up each other's limit, and the dry run that of the real one.
    """
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        if not function.__func__.__code__.co_filename.startswith(_TORCH):
            return types.MethodType(_cloned(function.__func__), function.__self__)
    elif isinstance(function, types.FunctionType) and not function.__code__.co_filename.startswith(_TORCH):
        return _cloned(function)

    # Dynamo starts no frame in torch's own files: start in one of ours
    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return _cloned(forward)


_TORCH = torch.__file__.rsplit("/", 1)[0]


def _cloned(function: types.FunctionType | Callable[..., Any]) -> Callable[..., Any]:
    original = cast(types.FunctionType, function)
    clone = types.FunctionType(
        original.__code__.replace(),
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    clone.__kwdefaults__ = original.__kwdefaults__
    return clone


def copy_sharing_tensors(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model's structure (modules, hooks, plain attributes) on the same tensors."""
    copied: torch.nn.Module = deep_copy(model, {id(t): t for t in reachable_tensors(model)})
    return copied


_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def reachable_tensors(root: Any) -> list[torch.Tensor]:
    """Every tensor that ``copy.deepcopy(root)`` would copy: parameters, buffers, plain attributes."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        item = stack.pop()
        # deepcopy takes types, modules and functions (with their closures) as they are
        if id(item) in seen or isinstance(item, _OPAQUE):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, weakref.ReferenceType):
            continue
        else:
            stack.extend(gc.get_referents(item))
    return found


def _fake_tensor(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "meta":
        with mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    else:
        fake = mode.from_tensor(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        fake.requires_grad_()
    for name, mark in vars(tensor).items():
        if name.startswith("_dynamo_"):  # mark_dynamic, maybe_mark_dynamic, mark_unbacked, mark_static
            setattr(fake, name, mark)
    return fake
