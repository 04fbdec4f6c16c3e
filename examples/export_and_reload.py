"""Export, rewrite, save; then load and run in a process that only knows the file and fxrewrite."""

import subprocess
import sys
import tempfile

import torch
from torch import nn

import fxrewrite

RELOAD = """
import sys, torch
import fxrewrite  # defines the operators that the program calls
program = torch.export.load(sys.argv[1])
with torch.no_grad():
    out = program.module()(torch.ones(3, 64, dtype=torch.bfloat16))
print("in another process:", tuple(out.shape), f"{out.float().sum():.4f}")
"""


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).bfloat16().eval()
    rows = torch.export.Dim("rows", min=2, max=512)
    with torch.no_grad():
        program = torch.export.export(model, (torch.ones(8, 64).bfloat16(),), dynamic_shapes=({0: rows},))
        fast = fxrewrite.rewrite(program)  # an ExportedProgram again
        print(fast.report.summary())
        print(f"here: {fast.module()(torch.ones(3, 64).bfloat16()).float().sum():.4f}")
    with tempfile.TemporaryDirectory() as folder:
        torch.export.save(fast, f"{folder}/fast.pt2")
        subprocess.run([sys.executable, "-c", RELOAD, f"{folder}/fast.pt2"], check=True)


if __name__ == "__main__":
    main()
