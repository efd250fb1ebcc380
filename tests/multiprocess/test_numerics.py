"""The bits of reductions: rank order, one rounding, NaN, zeros, overflow; alike on every path."""

from __future__ import annotations

import importlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess import cases as c
from tests.multiprocess.harness import run_ranks
from tests.multiprocess.reference import (
    FLOATS,
    SCALE,
    assert_same_bits,
    bits,
    is_defined,
    reduced,
    values,
)

Reduce = Callable[[torch.Tensor, str], torch.Tensor]


def entry_points(rank: int, world: int) -> dict[str, Reduce]:
    """Every way to reduce: from this rank's tensor and an operation to what this rank must get."""
    dda = importlib.import_module("dda")

    def all_reduce(x: torch.Tensor, op: str) -> torch.Tensor:
        y = x.clone()
        dist.all_reduce(y, c.torch_op(op))
        return y

    def coalesced(x: torch.Tensor, op: str) -> torch.Tensor:
        y, z = x.clone(), x.clone()
        with dist._coalescing_manager(device=c.device()):
            dist.all_reduce(y, c.torch_op(op))
            dist.all_reduce(z, c.torch_op(op))
        assert_same_bits(y, z)
        return y

    def reduce(x: torch.Tensor, op: str) -> torch.Tensor:
        for root in range(world):
            y = x.clone()
            dist.reduce(y, root, c.torch_op(op))
            if root == rank:
                mine = y
        return mine

    def reduce_scatter(x: torch.Tensor, op: str) -> torch.Tensor:
        y = torch.empty_like(x)
        dist.reduce_scatter(y, [x.clone() for _ in range(world)], c.torch_op(op))
        return y

    def reduce_scatter_tensor(x: torch.Tensor, op: str) -> torch.Tensor:
        y = torch.empty_like(x)
        dist.reduce_scatter_tensor(y, torch.cat([x] * world), c.torch_op(op))
        return y

    def by_algorithm(algorithm: str) -> Reduce:
        return lambda x, op: dda.all_reduce(x, op=op, algorithm=algorithm)

    return {
        "all_reduce": all_reduce,
        "coalesced": coalesced,
        "reduce": reduce,
        "reduce_scatter": reduce_scatter,
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "flat": by_algorithm("flat"),
        "tree": by_algorithm("tree"),
    }


def each_way(rank: int, world: int, parts: list[torch.Tensor], op: str, want: object) -> None:
    """Reduces `parts` in every way; `want` is the list that the result must be."""
    for name, way in entry_points(rank, world).items():
        if op == "premul_sum" and name in ("flat", "tree"):
            continue  # dda's own functions take the factor in another form
        got = way(parts[rank], op)
        expected = torch.tensor(want, dtype=got.dtype)
        assert_same_bits(got, expected, f"{name} {op}")


def average(rank: int, world: int) -> None:
    for r in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        each_way(
            rank, world, [torch.full((5,), k + 1.0, dtype=r) for k in range(3)], "avg", [2] * 5
        )
    for sign in (1, -1):
        sevens = [torch.full((5,), sign * v, dtype=torch.int32) for v in (7, 7, 8)]
        each_way(rank, world, sevens, "avg", [sign * 7] * 5)


def test_F01_average_is_a_mean_and_integers_truncate_toward_zero() -> None:
    run_ranks(average, 3)


def every_op(rank: int, world: int) -> None:
    want = {
        "sum": 9, "avg": 4, "product": 18, "min": 3, "max": 6, "band": 2, "bor": 7, "bxor": 5,
    }  # fmt: skip
    parts = [torch.tensor([v], dtype=torch.int32) for v in (6, 3)]
    for op, value in want.items():
        each_way(rank, world, parts, op, [value])


def test_F02_each_operation_is_the_one_asked_for() -> None:
    run_ranks(every_op, 2)


def nan_on_any_rank(rank: int, world: int, rows: list[list[float]]) -> None:
    for dtype in FLOATS:
        for op in ("min", "max", "sum", "product", "avg"):
            parts = [torch.tensor([v], dtype=dtype) for v in rows[rank]]
            for k, part in enumerate(parts):
                inputs = [torch.tensor([rows[r][k]], dtype=dtype) for r in range(world)]
                want = reduced(inputs, op)
                assert want.float().isnan().all()
                for name, way in entry_points(rank, world).items():
                    assert_same_bits(way(part, op), want, f"{name} {op} of {dtype}")


@pytest.mark.parametrize(
    "rows", [[[float("nan"), 5.0], [5.0, float("nan")]], [[1.0], [float("nan")], [3.0], [4.0]]]
)
def test_F03_a_nan_on_any_rank_is_a_nan_everywhere(rows: list[list[float]]) -> None:
    run_ranks(nan_on_any_rank, len(rows), rows)


def bools(rank: int, world: int) -> None:
    rows = [[True, True, False, False], [True, False, True, False], [True, False, False, False]]
    parts = [torch.tensor(row) for row in rows]
    either, both = [True, True, True, False], [True, False, False, False]
    odd = [True, True, True, False]
    for op, want in {
        "sum": either, "max": either, "bor": either, "product": both, "min": both, "band": both,
        "bxor": odd,
    }.items():  # fmt: skip
        each_way(rank, world, parts, op, want)
    for name, way in entry_points(rank, world).items():
        got = way(torch.ones(1000, dtype=torch.bool), "sum").view(torch.uint8)
        assert got.max() == 1, f"{name}: a bool with byte {got.max()}"
        assert "avg" in c.message_of(lambda: way(parts[rank], "avg"))  # noqa: B023
    # A byte other than 0 and 1 is true, and leaves as 1.
    odd_bytes = torch.full((100,), 2 * rank, dtype=torch.uint8).view(torch.bool)
    dist.all_reduce(odd_bytes)
    assert odd_bytes.view(torch.uint8).tolist() == [1] * 100


def test_F04_bools_are_or_and_and_with_bytes_of_0_and_1() -> None:
    run_ranks(bools, 3)


def any_pattern(rank: int, world: int) -> None:
    """Every 16-bit pattern of each half format, against random others; every pair of float8."""
    for dtype in (torch.float16, torch.bfloat16):
        generator = torch.Generator().manual_seed(5)
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32, device="cpu").to(torch.int16)
        every = torch.cat([every, every[:3]])  # 8 k + 3
        parts = [every] + [
            every[torch.randperm(len(every), generator=generator, device="cpu")]
            for _ in range(world - 1)
        ]
        check_patterns(rank, world, [part.view(dtype) for part in parts])
    first = torch.arange(256).repeat_interleave(256).to(torch.uint8)
    second = torch.arange(256).repeat(256).to(torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        parts = [first, second, second.flip(0)][:world]
        check_patterns(rank, world, [part.view(dtype) for part in parts])


def check_patterns(rank: int, world: int, parts: list[torch.Tensor]) -> None:
    dtype = parts[0].dtype
    for op in ("sum", "avg", "product", "min", "max", "premul_sum"):
        got = parts[rank].to(c.device(), copy=True)
        dist.all_reduce(got, c.torch_op(op))
        assert_same_bits(got, reduced(parts, op), f"{op} of {dtype} on {world} ranks")


@pytest.mark.parametrize("isa", ["auto", "baseline", "avx2", "avx512"])
@pytest.mark.parametrize("world", [2, 3])
def test_F05_sums_of_small_floats_are_rounded_once(world: int, isa: str) -> None:
    if isa != "auto" and os.environ["TEST_DEVICE"] == "cuda":
        pytest.skip("an instruction set of CPUs")
    flags = Path("/proc/cpuinfo").read_text()
    need = {"avx2": ("avx2", "f16c"), "avx512": ("avx512f", "avx512bw")}.get(isa, ())
    if not all(flag in flags for flag in need):
        pytest.skip(f"this CPU has no {isa}")
    run_ranks(any_pattern, world, env={"DDA_ISA": isa})


def overflow(rank: int, world: int) -> None:
    for sign in (1.0, -1.0):
        x = torch.full((11,), sign * 65504, dtype=torch.float16)
        dist.all_reduce(x)
        assert x.tolist() == [sign * float("inf")] * 11


def test_F05_overflow_is_infinity_of_its_sign() -> None:
    run_ranks(overflow, 2)


ROW = (1e8, 1.0, -1e8)


def embed_row(rank: int, world: int, delays: bool) -> None:
    dda = importlib.import_module("dda")
    want = ((torch.tensor(ROW[0]) + torch.tensor(ROW[1])) + torch.tensor(ROW[2])).reshape(1)
    luck = random.Random(rank)
    sizes = [1, 17, 1023, 1024, 8000, 16_384, 70_001, 300_000]
    for n in sizes if not delays else [n for n in (17, 8000) for _ in range(50)]:
        for algorithm in ("auto", "flat", "tree"):
            x = torch.full((n,), ROW[rank])
            if delays:
                time.sleep(luck.random() * 0.002)
            y = dda.all_reduce(x, algorithm=algorithm)
            assert_same_bits(y, want.expand(n), f"{n} elements, {algorithm}")


@pytest.mark.parametrize("delays", [False, True])
def test_F06_the_bits_depend_on_nothing_but_the_values(delays: bool) -> None:
    run_ranks(embed_row, 3, delays)


def halves(rank: int, world: int) -> None:
    for algorithm in ("flat", "tree"):
        dda = importlib.import_module("dda")
        x = torch.full((100,), 256.0 if rank == 0 else 0.5, dtype=torch.bfloat16)
        exact = torch.tensor(256 + 0.5 * (world - 1), dtype=torch.float64)
        y = dda.all_reduce(x, algorithm=algorithm)
        assert_same_bits(y, exact.to(torch.bfloat16).expand(100), algorithm)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_F07_one_rounding_whatever_the_number_of_ranks(world: int) -> None:
    run_ranks(halves, world)


def premultiplied(rank: int, world: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        parts = [values((77,), dtype, 3, r, special=False).to(c.device()) for r in range(world)]
        want = reduced(parts, "premul_sum")
        for name, way in entry_points(rank, world).items():
            if name not in ("flat", "tree"):
                assert_same_bits(way(parts[rank], "premul_sum"), want, f"{name} of {dtype}")
        by_tensor = parts[rank].clone()
        factor = torch.tensor([SCALE], dtype=dtype)
        dist.all_reduce(by_tensor, dist._make_nccl_premul_sum(factor))
        scaled = [(part.float() * factor.float()).to(dtype) for part in parts]
        if dtype == torch.float64:
            scaled = [part * factor for part in parts]
        assert_same_bits(by_tensor, reduced(scaled, "sum"), f"factor as a tensor, {dtype}")
    ints = torch.ones(3, dtype=torch.int32)
    assert "premul_sum" in c.message_of(lambda: dist.all_reduce(ints, c.torch_op("premul_sum")))
    assert ints.tolist() == [1, 1, 1]


def test_F08_premul_sum_scales_then_sums_or_refuses() -> None:
    run_ranks(premultiplied, 2)


def zeros_and_subnormals(rank: int, world: int) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        minus = torch.tensor([-0.0] * 9, dtype=dtype)
        dist.all_reduce(minus)
        assert minus.signbit().all(), f"-0 + -0 is -0 in {dtype}"
        for op, negative in (("min", True), ("max", False)):
            x = torch.full((9,), -0.0 if rank == 0 else 0.0, dtype=dtype)
            dist.all_reduce(x, c.torch_op(op))
            assert bool(x.signbit().all()) == negative, f"{op} of -0 and 0 in {dtype}"
        tiny = torch.full((9,), torch.finfo(dtype).smallest_normal, dtype=dtype) / 4
        y = tiny.clone()
        dist.all_reduce(y)
        assert_same_bits(y, tiny * world, f"subnormals of {dtype}")


@pytest.mark.parametrize("world", [2, 4])
def test_zeros_keep_their_sign_and_subnormals_stay(world: int) -> None:
    run_ranks(zeros_and_subnormals, world)


def flat_and_tree(rank: int, world: int) -> list[torch.Tensor]:
    dda = importlib.import_module("dda")
    digests = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for n in (1, 5, 64, 1000, 4099, 20_001):
            parts = [values((n,), dtype, n, r) for r in range(world)]
            want = reduced(parts, "sum")
            for algorithm in ("flat", "tree", "auto"):
                y = dda.all_reduce(parts[rank], algorithm=algorithm)
                assert_same_bits(y, want, f"{algorithm}, {n} of {dtype}")
            digests.append(bits(y)[:64])
    return digests


@pytest.mark.parametrize("world", range(1, 9))
def test_flat_and_tree_give_the_rank_order_sum_on_any_number_of_ranks(world: int) -> None:
    digests = run_ranks(flat_and_tree, world, env=c.SMALL_SLOTS)
    for other in digests[1:]:
        assert all(torch.equal(a, b) for a, b in zip(digests[0], other, strict=True))


def wide_integers(rank: int, world: int) -> None:
    for dtype in (torch.uint64, torch.int64, torch.uint32, torch.int8):
        parts = [values((501,), dtype, 9, r) for r in range(world)]
        for op in ("sum", "product", "avg", "min", "max"):
            assert is_defined(op, dtype)
            y = parts[rank].clone()
            dist.all_reduce(y, c.torch_op(op))
            assert_same_bits(y, reduced(parts, op), f"{op} of {dtype}")


@pytest.mark.parametrize("world", [2, 3])
def test_integers_of_any_width_and_sign_wrap(world: int) -> None:
    run_ranks(wide_integers, world)
