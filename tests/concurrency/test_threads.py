"""Threads and processes that share rewritten models, the first call included."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fxrewrite
from tests.support.block import BF16, block, kinds, right, tokens

THREADS = 32


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def together(count, work):
    """``work(i)`` on ``count`` threads that start at once; raises the first error."""
    barrier, errors = threading.Barrier(count), []

    def run(i):
        try:
            with torch.no_grad():
                barrier.wait()
                work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def shape(i):
    return tokens(1 + i % 3, 3 + i % 7, seed=i)


@pytest.mark.parametrize("warm", [False, True])
def test_many_threads_one_model(warm):
    fast = fxrewrite.rewrite(block())
    if warm:
        fast(tokens())

    def work(i):
        for _ in range(3):
            right(fast, block_of(0), shape(i))

    blocks = {0: block()}
    block_of = blocks.__getitem__
    together(THREADS, work)
    assert set(kinds(fast.report)) == {"linear", "sdpa"}


def test_two_models_compiled_at_once():
    plains = [block(seed) for seed in (1, 2)]
    fasts = [fxrewrite.rewrite(plain) for plain in plains]
    together(8, lambda i: right(fasts[i % 2], plains[i % 2], shape(i)))
    for fast in fasts:
        assert {"linear", "sdpa"} == set(kinds(fast.report))


def test_the_quality_of_one_thread_is_its_own():
    plain = block()
    fast = fxrewrite.rewrite(plain, (tokens(),))
    fast(tokens())
    exact = plain(tokens())

    def work(i):
        for _ in range(20):
            if i % 2:
                right(fast, plain)
            else:
                with fxrewrite.quality("exact"):
                    assert torch.equal(fast(tokens()), exact)

    together(4, work)


def test_other_numbers_of_threads():
    plain = block()
    fast = fxrewrite.rewrite(plain)
    before = torch.get_num_threads()
    try:
        for count in (2, 1, 4):
            torch.set_num_threads(count)
            right(fast, plain, tokens(3, 40))
            torch.mm(torch.ones(64, 64).to(BF16), torch.ones(64, 64).to(BF16))  # the framework's own kernels
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)


class Rows(Dataset):
    """What a worker process computes with a model that its parent has used."""

    def __init__(self, model):
        self.model = model

    def __len__(self):
        return 4

    def __getitem__(self, i):
        with torch.no_grad():
            return self.model(shape(i))[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_in_workers_of_a_loader(context):
    # a forked process must not start OpenMP threads that its parent had: torch's own rule
    torch.set_num_threads(1)
    plain = block()
    fast = fxrewrite.rewrite(plain, (tokens(),))
    fast(tokens())
    loader = DataLoader(Rows(fast), batch_size=1, num_workers=2, multiprocessing_context=context)
    for i, row in enumerate(loader):
        right(lambda x, row=row: row.expand(1, 1, -1), lambda_of(plain, i), shape(i))


def lambda_of(plain, i):
    """The first token of the plain model's output, as a module that can be copied and widened."""

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain

        def forward(self, x):
            return self.inner(x)[:1, :1]

    return First()


@pytest.mark.slow
def test_first_call_in_a_forked_process():
    """Imported before the fork, compiled after it."""
    torch.set_num_threads(1)
    plain = block()
    fast = fxrewrite.rewrite(plain)
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_write_whether_right, args=(fast, writing))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert os.read(reading, 10) == b"right"


def _write_whether_right(fast, writing):
    right(fast, block())
    os.write(writing, b"right")


SETTINGS = {
    "grad": torch.is_grad_enabled,
    "threads": torch.get_num_threads,
    "interop threads": torch.get_num_interop_threads,
    "default dtype": torch.get_default_dtype,
    "float32 precision": torch.get_float32_matmul_precision,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "fast path": torch.backends.mha.get_fastpath_enabled,
    "flush denormals": lambda: (torch.tensor([1e-310], dtype=torch.float64) * 1).item() != 0,
    "random state": lambda: torch.random.get_rng_state().tolist(),
    "dynamo": torch._dynamo.config.get_config_copy,
    "inductor": lambda: {
        key: value for key, value in _inductor().items() if isinstance(value, (bool, int, float, str))
    },
    "cache tag": lambda: torch.compiler.config.cache_key_tag,
}


def _inductor():
    import torch._inductor.config as config

    return config.get_config_copy()


@pytest.mark.parametrize("then", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_no_setting_of_torch_is_changed(then):
    before = {name: read() for name, read in SETTINGS.items()}
    fast = fxrewrite.rewrite(block(), (tokens(),), then=then)
    torch.random.set_rng_state(torch.tensor(before["random state"], dtype=torch.uint8))  # block() draws
    fast(tokens())
    fast(tokens(3, 9))
    for name, read in SETTINGS.items():
        assert read() == before[name], name
