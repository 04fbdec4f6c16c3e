#!/usr/bin/env bash
# Everything that takes a GPU, in under 8 minutes: builds the CUDA library, holds every op against float64,
# looks for faults with compute-sanitizer, times, and rewrites a real model.
#
#   tests/gpu/run.sh                  beside torch (2.11 or newer, with CUDA), nvcc, cmake, ninja, scikit-build-core,
#                                     and for the model diffusers
#   FXREWRITE_DRY=1 tests/gpu/run.sh  without a GPU: the same steps, kernels by the CPU shim, times without meaning
#
# PYTHON is the interpreter (default python3). Prints tables, and exits 1 if anything was wrong.
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
started=$SECONDS
failed=0

step() { # step SECONDS NAME COMMAND...
  local limit=$1 name=$2 from=$SECONDS
  shift 2
  echo "== $name"
  timeout "$limit" "$@"
  local status=$?
  [ $status -eq 0 ] || { echo "   FAILED: exit code $status"; failed=1; }
  echo "   $((SECONDS - from)) s"
}

if [ -n "${FXREWRITE_DRY:-}" ]; then
  step 400 "build of the shim" "$PYTHON" -c 'from tests.cuda.building import build; build("fxrewrite_cuda_shim"); build("fxrewrite_absent_device")'
else
  step 160 "build" "$PYTHON" -m pip install -q --no-build-isolation --no-deps -C cmake.define.FXREWRITE_CUDA=ON -e .
fi
step 60 "every op against float64" "$PYTHON" -m tests.gpu.check
if [ -z "${FXREWRITE_DRY:-}" ] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    step 45 "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" -m tests.gpu.check --small
  done
else
  echo "== compute-sanitizer: not at hand"
fi
step 90 "times" "$PYTHON" -m tests.gpu.times
step 60 "a model, end to end" "$PYTHON" -m tests.gpu.model
echo "== $((SECONDS - started)) s in all, $([ $failed -eq 0 ] && echo 'nothing wrong' || echo 'something FAILED')"
exit $failed
