"""What a TARGET of the command line leads to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """A model and the arguments of one call of it.

    ``name`` is that of the component in its pipeline, "" for a model alone; ``notes`` say what was
    chosen for the user (sizes of inputs, the dtype).
    """

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    notes: tuple[str, ...] = ()
