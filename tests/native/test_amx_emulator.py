"""The AMX emulator against a model in NumPy: every instruction, every form of address, every refusal.

A small assembler here writes the instructions' bytes, and they are executed as such.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.support import amx

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="tile instructions are of x86-64"),
    pytest.mark.skipif(not amx.LIBRARY.exists(), reason="the emulator is not built"),
]
NONE, P66, F3, F2 = range(4)
RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 = range(16)
SAVED = (RBX, RBP, R12, R13, R14, R15)  # of the caller
rng = np.random.default_rng(0)
kept: list[np.ndarray] = []


# ------------------------------------------------------------------------------------------ assembler


def vex(pp: int, opcode: int, reg: int, rm: int, vvvv: int = 0, index: int = 0) -> bytes:
    inverted = (1 - (reg >> 3)) << 7 | (1 - (index >> 3)) << 6 | (1 - (rm >> 3)) << 5
    return bytes([0xC4, inverted | 2, (15 - vvvv) << 3 | pp, opcode])


def tiles(pp: int, opcode: int, reg: int, rm: int = 0, vvvv: int = 0) -> bytes:
    """An instruction of tile operands only."""
    return vex(pp, opcode, reg, rm, vvvv) + bytes([0xC0 | (reg & 7) << 3 | rm & 7])


def memory(pp, opcode, reg, base, index=None, scale=0, displacement=None) -> bytes:
    """An instruction with a memory operand in SIB form; ``displacement`` is (bytes, value) or None."""
    mod = {None: 0, 1: 1, 4: 2}[displacement and displacement[0]]
    tail = b"" if displacement is None else displacement[1].to_bytes(displacement[0], "little", signed=True)
    x = 4 if index is None else index
    return (
        vex(pp, opcode, reg, base, index=x)
        + bytes([mod << 6 | (reg & 7) << 3 | 4, scale << 6 | (x & 7) << 3 | base & 7])
        + tail
    )


def set_register(register: int, value: int) -> bytes:
    return bytes([0x48 | register >> 3, 0xB8 | register & 7]) + (value & (1 << 64) - 1).to_bytes(8, "little")


def push(register: int) -> bytes:
    return bytes([0x40 | register >> 3, 0x50 | register & 7])


def pop(register: int) -> bytes:
    return bytes([0x40 | register >> 3, 0x58 | register & 7])


def run(*code: bytes) -> None:
    """Executes the bytes as a function that may change any register but RSP."""
    body = b"".join([*map(push, SAVED), *code, *map(pop, reversed(SAVED)), b"\xc3"])
    with mmap.mmap(-1, len(body), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(body)
        start = ctypes.c_char.from_buffer(page)
        ctypes.CFUNCTYPE(None)(ctypes.addressof(start))()
        del start


def load_config(at: np.ndarray) -> bytes:
    kept.append(at)  # the code holds its address only
    return set_register(RAX, at.ctypes.data) + memory(NONE, 0x49, 0, RAX)


def load(tile: int, array: np.ndarray) -> bytes:
    stride = array.strides[0]
    return set_register(RAX, array.ctypes.data) + set_register(RCX, stride) + memory(F2, 0x4B, tile, RAX, RCX)


def store(tile: int, array: np.ndarray) -> bytes:
    stride = array.strides[0]
    return set_register(RAX, array.ctypes.data) + set_register(RCX, stride) + memory(F3, 0x4B, tile, RAX, RCX)


RELEASE = tiles(NONE, 0x49, 0)
PRODUCTS = {
    "tdpbf16ps": (F3, 0x5C), "tdpfp16ps": (F2, 0x5C),
    "tdpbssd": (F2, 0x5E), "tdpbsud": (F3, 0x5E), "tdpbusd": (P66, 0x5E), "tdpbuud": (NONE, 0x5E),
}  # fmt: skip


def config(shapes: dict[int, tuple[int, int]], palette: int = 1, **bytes_at: int) -> np.ndarray:
    """The operand of LDTILECFG: {tile: (rows, bytes of a row)}."""
    raw = np.zeros(64, np.uint8)
    raw[0] = palette
    for tile, (rows, colsb) in shapes.items():
        raw[16 + 2 * tile], raw[17 + 2 * tile] = colsb & 255, colsb >> 8
        raw[48 + tile] = rows
    for name, value in bytes_at.items():
        raw[int(name[1:])] = value
    return raw


@pytest.fixture(autouse=True)
def _emulator():
    amx.load()
    amx.reset()
    yield
    run(RELEASE)


def test_bytes_of_the_assembler():
    """Two encodings that Intel's manual gives the parts of, written out."""
    assert tiles(F2, 0x49, 0).hex() == "c4e27b49c0"  # tilezero tmm0
    assert tiles(F3, 0x5C, 0, 1, 2).hex() == "c4e26a5cc1"  # tdpbf16ps tmm0, tmm1, tmm2


# ------------------------------------------------------------------------------------- moving of tiles


def test_configuration_round_trip():
    wanted, seen = config({0: (16, 64), 3: (5, 12), 7: (1, 4)}), np.full(64, 255, np.uint8)
    read_back = set_register(R13, seen.ctypes.data) + memory(P66, 0x49, 0, R13, displacement=(1, 0))
    run(load_config(wanted), read_back)
    np.testing.assert_array_equal(seen, wanted)
    assert any(thread.configured for thread in amx.threads())
    run(RELEASE, read_back)
    assert not seen.any()
    run(load_config(wanted), load_config(config({}, palette=0)), read_back)
    assert not seen.any()
    assert not any(thread.configured for thread in amx.threads())


@pytest.mark.parametrize(("rows", "colsb"), [(16, 64), (1, 4), (7, 20), (16, 3), (9, 64)])
@pytest.mark.parametrize("opcode", [(F2, 0x4B), (P66, 0x4B)], ids=["tileloadd", "tileloaddt1"])
def test_only_the_configured_part_is_moved(rows, colsb, opcode):
    source = rng.integers(0, 256, (16, 80), np.uint8)
    whole, part = np.full((16, 64), 7, np.uint8), np.full((16, 64), 7, np.uint8)
    run(
        load_config(config({2: (rows, colsb)})),
        set_register(RAX, source.ctypes.data), set_register(RCX, 80), memory(*opcode, 2, RAX, RCX),
        store(2, part),
    )  # fmt: skip
    whole[:rows, :colsb] = source[:rows, :colsb]
    np.testing.assert_array_equal(part, whole)


def test_zero():
    out = np.ones((16, 64), np.uint8)
    run(load_config(config({5: (16, 64)})), load(5, out), tiles(F2, 0x49, 5), store(5, out))
    assert not out.any()


def test_configuring_clears_tiles():
    out, both = np.ones((16, 64), np.uint8), load_config(config({1: (16, 64)}))
    run(both, load(1, out), both, store(1, out))
    assert not out.any()


ADDRESSES = [
    (base, index, displacement)
    for base in range(16)
    for index in (RCX, RBP, R8, R12, R15, None)
    for displacement in (None, (1, -64), (4, 4096))
    if base not in (RSP, index)
    and not (displacement is None and base & 7 == RBP)  # these bases have no form without a displacement
]


@pytest.mark.parametrize(("base", "index", "displacement"), ADDRESSES)
def test_addresses(base, index, displacement):
    source, out = rng.integers(0, 256, (16, 64), np.uint8), np.zeros((16, 64), np.uint8)
    offset = displacement[1] if displacement else 0
    registers = set_register(base, source.ctypes.data - offset)
    if index is not None:
        registers += set_register(index, 16)
    run(
        load_config(config({4: (16, 64)})), registers,
        memory(F2, 0x4B, 4, base, index, scale=2, displacement=displacement), store(4, out),
    )  # fmt: skip
    np.testing.assert_array_equal(out, source if index is not None else np.tile(source[0], (16, 1)))


def test_absolute_and_relative_addresses():
    out = np.zeros((16, 64), np.uint8)
    wanted = config({6: (2, 8)})
    # [rip + 2]: over a jump of two bytes that skips the configuration
    relative = (
        vex(NONE, 0x49, 0, 5) + bytes([0x05]) + (2).to_bytes(4, "little") + b"\xeb\x40" + wanted.tobytes()
    )
    run(relative, tiles(F2, 0x49, 6), store(6, out))
    with mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40) as low:  # MAP_32BIT
        view = np.frombuffer(low, np.uint8, 64)
        address = view.ctypes.data
        assert address < 1 << 31
        view = np.frombuffer(low, np.uint8)
        view[:64] = 9
        sib = bytes([6 << 3 | 4, 4 << 3 | 5]) + address.to_bytes(4, "little")  # a displacement only
        run(load_config(wanted), vex(F2, 0x4B, 6, 0) + sib, store(6, out))
        del view
    expected = np.zeros((16, 64), np.uint8)
    expected[:2, :8] = 9
    np.testing.assert_array_equal(out, expected)


def test_negative_stride():
    source, out = rng.integers(0, 256, (16, 64), np.uint8), np.zeros((16, 64), np.uint8)
    run(load_config(config({0: (16, 64)})), load(0, source[::-1]), store(0, out))
    np.testing.assert_array_equal(out, source[::-1])


# ------------------------------------------------------------------------------------------- products


def multiply(name, c, a, b, numbers=(0, 1, 2)):
    """c += a · b by one instruction; operands are arrays of rows as tiles hold them."""
    shapes = {n: (t.shape[0], t.shape[1] * t.itemsize) for n, t in zip(numbers, (c, a, b), strict=True)}
    pp, opcode = PRODUCTS[name]
    moves = [load(n, t) for n, t in zip(numbers, (c, a, b), strict=True)]
    run(load_config(config(shapes)), *moves, tiles(pp, opcode, *numbers), store(numbers[0], c))
    return c


def widen(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0) * x, x).astype(np.float32)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Rounded once: the product is exact in float64, and the sum in the wider long double."""
    wide = np.longdouble
    return flushed(
        (flushed(a).astype(wide) * flushed(b).astype(wide) + flushed(c).astype(wide)).astype(np.float32)
    )


def model_pairs(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As documented, for operands that are widened already: a [m, 2k], b [k, 2n]."""
    columns = c.shape[1]
    even, odd = np.zeros_like(c), np.zeros_like(c)
    for k in range(b.shape[0]):
        even = fma(a[:, 2 * k, None], b[k, 0::2][None], even)
        odd = fma(a[:, 2 * k + 1, None], b[k, 1::2][None], odd)
    assert even.shape[1] == columns
    return flushed(flushed(c) + flushed(even + odd))


@pytest.mark.parametrize("shape", [(16, 16, 16), (1, 1, 1), (5, 3, 7), (16, 1, 16), (2, 16, 9)])
def test_bf16(shape):
    m, n, k = shape
    bits = [rng.standard_normal(s).astype(np.float32).view(np.uint32) >> 16 for s in ((m, 2 * k), (k, 2 * n))]
    a, b = (t.astype(np.uint16) for t in bits)
    c = rng.standard_normal((m, n)).astype(np.float32)
    wanted = model_pairs(c, widen(a), widen(b))
    np.testing.assert_array_equal(multiply("tdpbf16ps", c, a, b), wanted)


def test_bf16_order_of_sums():
    """Even and odd elements are summed apart: 2^24 + 1 - 2^24 is 0 in one sum, and 1 in two."""
    a = np.array([[0x4B80, 0x3F80, 0xCB80, 0]], np.uint16)  # 2^24, 1, -2^24, 0
    ones = np.full((2, 2), 0x3F80, np.uint16)
    assert multiply("tdpbf16ps", np.zeros((1, 1), np.float32), a, ones).item() == 1.0


def test_bf16_subnormals_are_zeros():
    def one(a, b, c=0.0):
        left, right = np.array([[a, 0]], np.uint16), np.array([[b, 0]], np.uint16)
        return multiply("tdpbf16ps", np.array([[c]], np.float32), left, right).item()

    least, subnormal, big = 0x0080, 0x0001, 0x7F00  # 2^-126, 2^-133, 2^127
    assert one(least, big) == 2.0
    assert one(subnormal, big) == 0.0
    assert one(least, 0x3F00) == 0.0  # a subnormal result
    assert one(0, 0, 2.0**-130) == 0.0  # a subnormal sum


def test_bf16_specials():
    inf, nan, one = 0x7F80, 0x7FC0, 0x3F80
    a = np.array([[inf, 0], [nan, 0], [one, 0]], np.uint16)
    c = multiply("tdpbf16ps", np.zeros((3, 1), np.float32), a, np.array([[one, one]], np.uint16))
    assert c[0, 0] == np.inf
    assert np.isnan(c[1, 0])
    assert c[2, 0] == 1.0


def test_fp16():
    a, b = rng.standard_normal((16, 32)).astype(np.float16), rng.standard_normal((16, 32)).astype(np.float16)
    a[0, 0], a[1, 1] = 2.0**-24, 3 * 2.0**-20  # subnormals count
    c = rng.standard_normal((16, 16)).astype(np.float32)
    wanted = model_pairs(c, a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(multiply("tdpfp16ps", c, a, b), wanted)


@pytest.mark.parametrize(
    ("name", "left", "right"),
    [("tdpbssd", "i1", "i1"), ("tdpbsud", "i1", "u1"), ("tdpbusd", "u1", "i1"), ("tdpbuud", "u1", "u1")],
)
@pytest.mark.parametrize("shape", [(16, 16, 16), (3, 5, 2)])
def test_bytes(name, left, right, shape):
    m, n, k = shape
    a = rng.integers(0, 256, (m, 4 * k), np.uint8).view(left)
    b = rng.integers(0, 256, (k, 4 * n), np.uint8).view(right)
    c = rng.integers(-(2**31), 2**31, (m, n), np.int64).astype(np.int32)
    wide = np.einsum("mki,kni->mn", *(t.astype(np.int64) for t in (a.reshape(m, k, 4), b.reshape(k, n, 4))))
    wanted = (c.astype(np.int64) + wide).astype(np.int32)  # wraps around
    np.testing.assert_array_equal(multiply(name, c, a, b), wanted)


def test_operands_by_number():
    a, b = (rng.integers(0, 100, (8, 4 * 8), np.uint8).view("i1") for _ in range(2))
    wanted = multiply("tdpbssd", np.zeros((8, 8), np.int32), a, b)
    np.testing.assert_array_equal(multiply("tdpbssd", np.zeros((8, 8), np.int32), a, b, (6, 3, 7)), wanted)
    np.testing.assert_array_equal(multiply("tdpbssd", np.zeros((8, 8), np.int32), b, a, (6, 7, 3)),
                                  multiply("tdpbssd", np.zeros((8, 8), np.int32), b, a))  # fmt: skip


def test_sums_beyond_the_columns_are_zeros():
    """An infinity of the right operand meets only the columns that there are."""
    a, b = np.full((1, 2), 0x3F80, np.uint16), np.full((1, 2), 0x7F80, np.uint16)
    wide = np.full((1, 16), 5, np.float32)
    shapes = {0: (1, 4), 1: (1, 4), 2: (1, 4)}
    run(
        load_config(config(shapes)),
        load(0, wide),
        load(1, a),
        load(2, b),
        tiles(F3, 0x5C, 0, 1, 2),
        store(0, wide),
    )
    assert wide[0].tolist() == [np.inf] + [5.0] * 15


# --------------------------------------------------------------------------------- threads and counts


def test_counts():
    multiply(
        "tdpbf16ps", np.zeros((3, 1), np.float32), np.zeros((3, 4), np.uint16), np.zeros((2, 2), np.uint16)
    )
    counted = amx.total()
    done = {name: count for name, count in counted.instructions.items() if count}
    assert done == {"ldtilecfg": 1, "tileloadd": 3, "tdpbf16ps": 1, "tilestored": 1}
    assert counted.multiplied_rows == 3
    amx.reset()
    assert not any(amx.total().instructions.values())


def test_each_thread_has_its_own_tiles():
    out = np.zeros((2, 16, 64), np.uint8)
    sources = [rng.integers(0, 256, (16, 64), np.uint8) for _ in range(2)]
    barrier = threading.Barrier(2)

    def work(i):
        run(load_config(config({0: (16, 64)})), load(0, sources[i]))
        barrier.wait()
        run(store(0, out[i]), RELEASE)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    np.testing.assert_array_equal(out, sources)
    counted = [thread.instructions for thread in amx.threads() if thread.instructions["tilerelease"]]
    assert [(c["tileloadd"], c["tilestored"]) for c in counted] == [(1, 1), (1, 1)]


def test_vector_registers_survive():
    """The handler uses vector registers itself; NumPy's results around it do not change."""
    left = rng.standard_normal((64, 64))
    wanted = left @ left
    for _ in range(20):
        run(load_config(config({0: (1, 4)})), tiles(F2, 0x49, 0))
        np.testing.assert_array_equal(left @ left, wanted)


# ------------------------------------------------------------------------------------------- refusals

SQUARE = {0: (16, 64), 1: (16, 64), 2: (16, 64)}
DOT = tiles(F3, 0x5C, 0, 1, 2)
REFUSALS = {
    "tilezero while tiles are not configured": [tiles(F2, 0x49, 0)],
    "tdpbf16ps while tiles are not configured": [DOT],
    "tile 3 is not configured": [load_config(config(SQUARE)), tiles(F2, 0x49, 3)],
    "palette 2": [load_config(config({}, palette=2))],
    "a reserved byte is 1": [load_config(config(SQUARE, b9=1))],
    "there is no tile 8": [load_config(config({8: (1, 4)}))],
    "tile 0 has 17 rows of 64 bytes": [load_config(config({0: (17, 64)}))],
    "tile 1 has 16 rows of 68 bytes": [load_config(config({1: (16, 68)}))],
    "tile 2 has 0 rows of 4 bytes": [load_config(config({2: (0, 4)}))],
    "the sums have 16 rows, the left operand 8": [load_config(config({**SQUARE, 1: (8, 64)})), DOT],
    "the right operand of 32": [load_config(config({**SQUARE, 2: (16, 32)})), DOT],
    "the left operand has 8 dwords a row, the right one 16 rows": [
        load_config(config({**SQUARE, 1: (16, 32)})), DOT,
    ],
    "rows of 62 bytes are not whole dwords": [load_config(config({**SQUARE, 1: (16, 62)})), DOT],
    "tiles 0, 1 and 1 are not distinct": [load_config(config(SQUARE)), tiles(F3, 0x5C, 0, 1, 1)],
    "tileloadd without a SIB byte": [load_config(config(SQUARE)), vex(F2, 0x4B, 0, RAX) + b"\x00"],
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason):
    """What hardware answers with #UD or #GP ends the process with the reason."""
    script = f"from tests.native import test_amx_emulator as t\nt.amx.load(); t.run(*t.REFUSALS[{reason!r}])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == -6, done
    assert done.stderr.startswith("AMX emulator: #")
    assert reason in done.stderr.splitlines()[0]


def test_other_illegal_instructions_stay_illegal():
    script = "from tests.native import test_amx_emulator as t; t.amx.load(); t.run(b'\\x0f\\x0b')"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -4
