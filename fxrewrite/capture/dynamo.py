"""Graphs that Dynamo hands to its backend become functional, pre-dispatch ATen."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._guards
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import get_current_meta, preserve_node_meta
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..decompositions import DECOMPOSITIONS
from ..errors import CaptureError, first_line
from .bodies import Bodies
from .graphs import canonical_graph
from .repeats import OWN_STORAGE, REGION, Stack, relabelled
from .wrappers import Wrapper, wrap_placeholders

aten = torch.ops.aten
_DATA = torch._C._autograd._get_data_attr  # type: ignore[attr-defined]


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
    wrappers = {i: Wrapper(e) for i, e in enumerate(examples) if is_traceable_wrapper_subclass(e)}
    flat = [t for i, e in enumerate(examples) for t in (wrappers[i].tensors() if i in wrappers else [e])]
    mode = next((e.fake_mode for e in flat if isinstance(e, FakeTensor)), None)
    grad_enabled = torch.is_grad_enabled()
    context = contextlib.nullcontext() if mode is None else mode

    def run(*tensors: Any) -> Any:
        remaining = iter(tensors)
        inputs = [
            wrappers[i].rebuilt(remaining) if i in wrappers else next(remaining) for i in range(len(examples))
        ]
        return _Interpreter(gm, detaches=not grad_enabled).run(*inputs)

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
    wrap_placeholders(traced, examples, wrappers)
    for placeholder, example in zip(traced.graph.find_nodes(op="placeholder"), examples, strict=True):
        placeholder.meta["requires_grad"] = isinstance(example, torch.Tensor) and example.requires_grad
    return canonical_graph(traced)


class _Interpreter(fx.Interpreter):
    """Runs a Dynamo graph to trace it, in the regions of autocast that the graph has.

    The tracer only writes them down: outside of them dtypes are not those of the run, and a cast
    (``x.float()``) to the dtype that ``x`` seems to have would be traced as ``x`` itself.

    The body of a nested compile region is traced in the place of each of its calls.

    ``detaches``: no gradient is recorded, and ``x.data``, which tracers do not see, is ``x.detach()``.
    (Where one is, writing through the one is an error that writing through the other is not.)
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        traced_in: dict[int, Stack] | None = None,
        bodies: Bodies | None = None,
        relabel: Callable[[Stack], Stack] | None = None,
        *,
        detaches: bool,
    ) -> None:
        super().__init__(gm)
        self._detaches = detaches
        self._traced_in = {} if traced_in is None else traced_in
        self._bodies = Bodies() if bodies is None else bodies
        self._relabel = relabel

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._regions: list[torch.autocast] = []
        try:
            return super().run(*args, **kwargs)
        finally:
            while self._regions:  # of a trace that failed
                self._leave()

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._tell_where()
        return super().call_method(target, args, kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._tell_where()
        if target is REGION:
            return self._body(*args)
        if target is OWN_STORAGE:
            return args[0]
        if target is _DATA and self._detaches:
            return args[0].detach()
        result = super().call_function(target, args, kwargs)
        if target is torch.amp.autocast_mode._enter_autocast:
            region = torch.autocast(*args)
            with torch._C.DisableTorchFunction():  # it is written down already
                region.__enter__()
            self._regions.append(region)
        elif target is torch.amp.autocast_mode._exit_autocast:
            self._leave()
        return result

    def _body(self, body: fx.GraphModule, _: str, *operands: Any) -> Any:
        called: Stack = get_current_meta().get("nn_module_stack", {})
        # Dynamo traced it where it is called first, and its nodes tell those modules
        traced = self._traced_in.setdefault(id(body), called)
        relabel = functools.partial(relabelled, traced=traced, called=called)
        interpreter = _Interpreter(body, self._traced_in, self._bodies, relabel, detaches=self._detaches)
        return self._bodies.result(body, operands, called, lambda: interpreter.run(*operands))

    def _tell_where(self) -> None:
        meta = get_current_meta()
        if self._relabel and "nn_module_stack" in meta:
            meta["nn_module_stack"] = self._relabel(meta["nn_module_stack"])

    def _leave(self) -> None:
        with torch._C.DisableTorchFunction():
            self._regions.pop().__exit__(None, None, None)


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
