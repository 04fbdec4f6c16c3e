"""The Python of README and guide runs as it is written, and says what it does of a model of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parent.parent


class Lora(nn.Module):
    """What the rule of the texts is about."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(256, 128, bias=False)
        self.down, self.up = nn.Linear(256, 8, bias=False), nn.Linear(8, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def blocks(file: str) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("file", ["README.md", "docs/index.md", "docs/guide/rules.md"])
def test_the_code_runs(file, capsys):
    torch.compiler.reset()
    names = {
        "model": Lora().to(torch.bfloat16).eval(),
        "args": (torch.randn(4, 256, dtype=torch.bfloat16),),
        "kwargs": {},
    }
    found = blocks(file)
    assert found
    for number, block in enumerate(found):
        exec(compile(block, f"{file}, block {number}", "exec"), names)
        if "MergeLora" in block and "fast" in names:
            assert [site.rule for site in names["fast"].report.matched] == ["MergeLora"]
    if "out" in names:
        torch.testing.assert_close(names["out"], names["model"](*names["args"]), atol=0.02, rtol=0.02)
