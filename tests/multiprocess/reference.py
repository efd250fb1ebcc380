"""What collectives must give, computed by one process, and tensors to give them.

Sums of 8- and 16-bit floats are kept in float32, in rank order from rank 0's value, and rounded
once; integers wrap; a NaN stays and leaves as the one canonical NaN of its dtype. Every rank can
make every rank's input from a seed, so each checks its own result, to the bit, without more calls.

A tensor under test is `Placed`: its elements lie somewhere in a larger block in one of `LAYOUTS`,
and the rest of the block is a guard that must stay as it was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tests.multiprocess.harness import device

INTEGERS = (
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64,
)  # fmt: skip
WIDE_FLOATS = (torch.float32, torch.float64)
NARROW_FLOATS = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = WIDE_FLOATS + NARROW_FLOATS
COMPLEX = (torch.complex64, torch.complex128)
REDUCED = INTEGERS + (torch.bool,) + FLOATS + COMPLEX
OPAQUE = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex32)
DTYPES = REDUCED + OPAQUE

SCALE = 0.3  # the factor of PREMUL_SUM: not exact in any format
OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
BITWISE = ("band", "bor", "bxor")

CANONICAL_NAN = {
    torch.float16: 0x7E00,
    torch.bfloat16: 0x7FC0,
    torch.float32: 0x7FC00000,
    torch.float64: 0x7FF8000000000000,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
}
_SPECIAL = (
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    -math.nan,
    1e-45,
    -1e-40,
    6e-8,
    65504.0,
    3e38,
    -3e38,
)


def is_defined(op: str, dtype: torch.dtype) -> bool:
    """Whether torch.distributed lets `op` through on `dtype` (it stops complex products itself)."""
    if dtype in OPAQUE:
        return False
    if dtype in INTEGERS:
        return op != "premul_sum"
    if dtype == torch.bool:
        return op not in ("premul_sum", "avg")
    if dtype in COMPLEX:
        return op not in (*BITWISE, "min", "max", "product")
    return op not in BITWISE


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of the elements, in order."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


def assert_same_bits(got: torch.Tensor, want: torch.Tensor, what: str = "") -> None:
    """Compares dtype, shape and every bit.

    Raises:
        AssertionError: naming the first element that differs.
    """
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    a, b = bits(got), bits(want)
    if torch.equal(a, b):
        return
    size = want.element_size()
    wrong = (a != b).reshape(-1, size).any(1).nonzero().reshape(-1)
    i = int(wrong[0])
    raise AssertionError(
        f"{what}: {len(wrong)} of {want.numel()} elements differ; the first is [{i}]: "
        f"{a[i * size : (i + 1) * size].tolist()}, not {b[i * size : (i + 1) * size].tolist()} "
        f"(bytes), {got.reshape(-1)[i]}, not {want.reshape(-1)[i]}"
    )


def values(
    shape: Sequence[int], dtype: torch.dtype, seed: int, rank: int, special: bool = True
) -> torch.Tensor:
    """Random elements; of floats some are infinite, NaN, subnormal or zeros of either sign."""
    random = np.random.default_rng((seed, rank))
    n = math.prod(shape)
    if dtype in OPAQUE or dtype in INTEGERS:
        size = dtype.itemsize
        raw = torch.from_numpy(random.integers(0, 256, n * size, dtype=np.uint8))
        return (
            raw.view(dtype).reshape(tuple(shape))
            if n
            else torch.empty(tuple(shape), dtype=dtype, device="cpu")
        )
    if dtype == torch.bool:
        return torch.from_numpy(random.integers(0, 2, n).astype(bool)).reshape(tuple(shape))
    parts = 2 if dtype in COMPLEX else 1
    numbers = random.standard_normal(n * parts) * np.exp2(random.integers(-6, 7, n * parts))
    if special:
        chosen = random.random(n * parts) < 1 / 16
        numbers[chosen] = random.choice(_SPECIAL, int(chosen.sum()))
    flat = torch.from_numpy(numbers)
    if parts == 2:
        real = torch.float32 if dtype == torch.complex64 else torch.float64
        return torch.view_as_complex(flat.to(real).reshape(n, 2)).reshape(tuple(shape))
    return flat.to(dtype).reshape(tuple(shape))


def canonical(tensor: torch.Tensor, nan: torch.Tensor | None = None) -> torch.Tensor:
    """`tensor` (floats or complex) with every NaN, or every element of `nan`, made canonical."""
    if tensor.is_complex():
        return torch.view_as_complex(canonical(torch.view_as_real(tensor)))
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    nan = tensor.isnan() if nan is None else nan
    pattern = torch.tensor(CANONICAL_NAN[tensor.dtype], dtype=word, device=tensor.device)
    return torch.where(nan, pattern, tensor.contiguous().view(word)).view(tensor.dtype)


def reduced(parts: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    """The elementwise reduction of one tensor a rank, in rank order, computed on the CPU."""
    parts = [part.cpu() for part in parts]
    dtype = parts[0].dtype
    if len(parts) == 1 and op != "premul_sum":
        return parts[0].clone()
    if dtype in COMPLEX and op != "product":  # by components: torch passes them as pairs of floats
        return torch.view_as_complex(reduced([torch.view_as_real(p) for p in parts], op))
    if dtype in INTEGERS:
        return _reduced_integers(parts, op)
    if dtype == torch.bool:
        return _reduced_bools(parts, op)
    if op == "premul_sum":
        parts = [(_widen(part) * SCALE).to(dtype) for part in parts]
    wide = [_widen(part) for part in parts]
    total = wide[0].clone()
    for part in wide[1:]:
        total = _fold(total, part, op)
    if op == "avg":
        total = total / len(parts)
    if dtype in COMPLEX:
        return canonical(total)
    if dtype == torch.float8_e4m3fn:  # torch's casts of what is too large differ between releases
        total = total.clamp(-448.0, 448.0)
    return canonical(total.to(dtype), nan=total.isnan())


def _widen(part: torch.Tensor) -> torch.Tensor:
    return part.to(torch.float32) if part.dtype in NARROW_FLOATS else part


def _fold(a: torch.Tensor, b: torch.Tensor, op: str) -> torch.Tensor:
    if op in ("sum", "avg", "premul_sum"):
        return a + b
    if op == "product":
        if not a.is_complex():
            return a * b
        re = a.real * b.real - a.imag * b.imag
        return torch.complex(re, a.real * b.imag + a.imag * b.real)
    less = (a < b) | ((a == b) & a.signbit())  # -0 is less than +0
    chosen = torch.where(less == (op == "min"), a, b)
    return torch.where(a.isnan() | b.isnan(), torch.nan, chosen)


def _reduced_bools(parts: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    fold = {
        "sum": torch.logical_or, "max": torch.logical_or, "bor": torch.logical_or,
        "product": torch.logical_and, "min": torch.logical_and, "band": torch.logical_and,
        "bxor": torch.logical_xor,
    }[op]  # fmt: skip
    total = parts[0].clone()
    for part in parts[1:]:
        total = fold(total, part)
    return total


def _reduced_integers(parts: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    shape = parts[0].shape
    arrays = [part.numpy().reshape(-1) for part in parts]  # NumPy makes scalars of 0 dimensions
    kind = arrays[0].dtype
    if op == "avg":  # of the exact sum, towards zero; 64-bit sums wrap
        wide = np.uint64 if kind.kind == "u" else np.int64
        total = np.sum([array.astype(wide) for array in arrays], axis=0, dtype=wide)
        n = wide(len(parts))
        quotient = total // n + ((total % n != 0) & (total < 0)).astype(wide)
        return torch.from_numpy(quotient.astype(kind)).reshape(shape)
    fold = {
        "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }[op]  # fmt: skip
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = np.asarray(fold(total, array), dtype=kind)
    return torch.from_numpy(total).reshape(shape)


LAYOUTS = ("plain", "offset", "strided", "transposed", "gaps")
_GUARD = 0xA5


@dataclass
class Placed:
    """A tensor within a guarded block.

    Attributes:
        view: the tensor to pass to a collective.
        block: the memory around it.
        before: the bytes of the block as they were.
    """

    view: torch.Tensor
    block: torch.Tensor
    before: torch.Tensor

    def assert_guards(self, what: str = "") -> None:
        """Raises AssertionError if anything but the tensor's elements has changed."""
        want = self.before.view(self.block.dtype).clone()
        where = want.as_strided(self.view.size(), self.view.stride(), self.view.storage_offset())
        where.copy_(self.view)
        assert torch.equal(bits(self.block), bits(want)), f"{what}: wrote beside the tensor"

    def assert_untouched(self, what: str = "") -> None:
        """Raises AssertionError if anything has changed."""
        assert torch.equal(bits(self.block), self.before), f"{what}: the tensor was written"


def place(content: torch.Tensor, layout: str = "plain") -> Placed:
    """Puts a copy of `content` into a guarded block, in one of LAYOUTS."""
    shape = tuple(content.shape)
    n = content.numel()
    pad = 3  # elements on either side, odd so that few pointers are aligned
    room = 2 * max(n, 1) + 2 * pad
    size = content.element_size()
    guard = 1 if content.dtype == torch.bool else _GUARD
    block = torch.full((room * size,), guard, dtype=torch.uint8, device=device())
    block = block.view(content.dtype)
    stride = list(torch.empty(shape, device="meta").stride())
    offset = 0
    if layout == "offset":
        offset = pad
    elif layout == "strided":
        stride, offset = [2 * s for s in stride], pad
    elif layout == "transposed":
        stride = list(torch.empty(shape[::-1], device="meta").stride())[::-1]
        offset = 1
    elif layout == "gaps" and len(shape) > 1:  # a gap after each row
        row = math.prod(shape[1:])
        stride[0] = row + max(1, row // 2)
        offset = pad if (shape[0] - 1) * stride[0] + row + pad <= room else 0
    view = block.as_strided(shape, stride, offset)
    view.copy_(content)
    return Placed(view, block, bits(block).clone())


def blank(shape: Sequence[int], dtype: torch.dtype, layout: str = "plain") -> Placed:
    """An output whose elements hold what no result holds by chance."""
    return place(values(shape, dtype, 987, 654), layout)
