"""A rank is killed, stopped or slowed at each step of the protocol.

The steps are named in csrc/device/cpu.h: "publish" lies before the store of a signal, "published"
behind it. The ranks run the build in build/failpoints, which `make test` makes: there
DDA_FAILPOINT=name:rank:hit:action does `action` when `rank` comes to a step for the `hit`-th time.
"""

import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import Ranks

PACKAGE = Path(__file__).resolve().parents[2] / "build/failpoints"
WORLD = 3
VICTIM = 1
ROUNDS = 5  # more than the last hit, so that survivors come to miss the victim

pytestmark = pytest.mark.skipif(
    not (PACKAGE / "dda/_build_info.py").exists(),
    reason="there is no build with fail points; make .venv/.failpoints makes it",
)


def call(name: str, rank: int) -> None:
    """Makes one call and checks what it gave."""
    small, large = torch.ones(8), torch.ones(1 << 20)
    if name == "flat":
        dist.all_reduce(small)
        assert torch.equal(small, torch.full((8,), float(WORLD)))
    elif name == "tree":
        dist.all_reduce(large)
        assert torch.equal(large, torch.full((1 << 20,), float(WORLD)))
    elif name == "broadcast":
        large.fill_(rank)
        dist.broadcast(large, src=VICTIM)
        assert torch.equal(large, torch.full((1 << 20,), float(VICTIM)))
    elif name == "all_gather":
        parts = torch.empty(WORLD * 8)
        dist.all_gather_into_tensor(parts, torch.full((8,), float(rank)))
        assert torch.equal(parts, torch.arange(float(WORLD)).repeat_interleave(8))
    elif name == "single_copy":
        parts = torch.empty(WORLD << 18)
        dist.all_gather_into_tensor(parts, torch.full((1 << 18,), float(rank)))
        assert torch.equal(parts, torch.arange(float(WORLD)).repeat_interleave(1 << 18))
    else:
        parts = torch.empty(WORLD)
        dist.all_to_all_single(parts, torch.full((WORLD,), float(rank)))
        assert torch.equal(parts, torch.arange(float(WORLD)))


CALLS = ["flat", "tree", "broadcast", "all_gather", "all_to_all", "single_copy"]


def repeat(rank: int, world: int, name: str, timeout: float) -> tuple[str, float]:
    """Returns the first error and the seconds that its call took, or ("", 0) without one."""
    import dda

    dda.set_timeout(timeout)
    for _ in range(ROUNDS):
        begin = time.monotonic()
        try:
            call(name, rank)
        except dist.DistBackendError as error:
            return str(error), time.monotonic() - begin
    return "", 0.0


def run(name: str, failpoint: str, timeout: float) -> Ranks:
    return Ranks(
        repeat,
        WORLD,
        name,
        timeout,
        backend="dda",
        env={"DDA_FAILPOINT": failpoint},
        package_dir=PACKAGE,
    )


SURVIVORS = [rank for rank in range(WORLD) if rank != VICTIM]


@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize("step", ["publish", "published"])
@pytest.mark.parametrize("name", CALLS)
def test_F24_a_rank_killed_at_a_step_is_named_at_once(name, step, hit):
    with run(name, f"{step}:{VICTIM}:{hit}:kill", timeout=60) as ranks:
        assert ranks.outcome(VICTIM).exitcode == -signal.SIGKILL
        for outcome in ranks.join(20, SURVIVORS):
            assert outcome.ok, outcome.describe()
            message, seconds = outcome.value
            assert f"rank {VICTIM} died" in message
            assert seconds < 5  # of 60: no timeout, even on a busy machine


@pytest.mark.parametrize("step", ["publish", "published"])
@pytest.mark.parametrize("name", CALLS)
def test_F25_a_rank_stopped_at_a_step_is_named_in_time(name, step):
    with run(name, f"{step}:{VICTIM}:2:stop", timeout=1) as ranks:
        for outcome in ranks.join(30, SURVIVORS):
            assert outcome.ok, outcome.describe()
            message, seconds = outcome.value
            assert "Timed out after 1000 ms" in message
            assert f"rank {VICTIM}" in message
            assert seconds < 6


@pytest.mark.parametrize("step", ["publish", "published"])
@pytest.mark.parametrize("name", CALLS)
def test_F33_a_rank_slowed_at_a_step_changes_nothing(name, step):
    with run(name, f"{step}:{VICTIM}:2:200", timeout=60) as ranks:
        for outcome in ranks.join(30):
            assert outcome.ok, outcome.describe()
            assert outcome.value == ("", 0.0)
