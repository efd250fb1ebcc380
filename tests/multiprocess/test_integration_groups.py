"""Groups beside the default one: made in any order, split, nested, with roots named both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from tests.multiprocess.harness import BACKEND, run_ranks

BIT = [2.0**rank for rank in range(8)]  # a sum of these names its ranks


def assert_members(group: dist.ProcessGroup | None, members: Sequence[int]) -> None:
    """An all_reduce over the group adds up just `members`."""
    x = torch.tensor([BIT[dist.get_rank()]])
    dist.all_reduce(x, group=group)
    assert x.item() == sum(BIT[m] for m in members), (x.item(), members)


def roots(rank: int, world: int) -> None:
    """A root is the same rank whether it is named in the group or in the world."""
    for members in ([1, 2], [2, 1]):
        group = dist.new_group(members)
        if rank not in members:
            continue
        own = dist.get_rank(group)
        assert own == dist.get_group_rank(group, rank)
        for root in members:
            group_root = dist.get_group_rank(group, root)
            for src, dst in (
                ({"src": root}, {"dst": root}),
                ({"group_src": group_root}, {"group_dst": group_root}),
            ):
                x = torch.tensor([BIT[rank]])
                dist.broadcast(x, group=group, **src)
                assert x.item() == BIT[root], ("broadcast", members, src)

                x = torch.tensor([BIT[rank]])
                dist.reduce(x, group=group, **dst)
                assert x.item() == (6.0 if rank == root else BIT[rank]), ("reduce", members, dst)

                parts = [torch.tensor([10.0]), torch.tensor([11.0])] if rank == root else None
                dist.scatter(x, parts, group=group, **src)
                assert x.item() == 10 + own, ("scatter", members, src)

                x = torch.tensor([BIT[rank]])
                parts = [torch.empty(1), torch.empty(1)] if rank == root else None
                dist.gather(x, parts, group=group, **dst)
                if parts is not None:
                    in_order = sorted(members, key=lambda r: dist.get_group_rank(group, r))
                    assert [p.item() for p in parts] == [BIT[r] for r in in_order]
        for call in (
            lambda group=group: dist.broadcast(torch.ones(1), src=0, group=group),
            lambda group=group: dist.reduce(torch.ones(1), dst=0, group=group),
        ):
            with pytest.raises((ValueError, RuntimeError), match="not part of group"):
                call()


def members_only(rank: int, world: int, backwards: bool) -> None:
    """Groups whose creation only their members take part in, in orders of their own."""
    groups = {}
    for members in ((0, 1, 2), (2, 3), (0, 1, 2, 3), (1, 3)):
        if rank in members:
            groups[members] = dist.new_group(list(members), use_local_synchronization=True)
    for members, group in groups.items():
        assert_members(group, members)
    for members, group in sorted(groups.items(), reverse=backwards):
        assert_members(group, members)
        dist.destroy_process_group(group)
    assert_members(None, range(world))


def members_only_backwards(rank: int, world: int) -> None:
    members_only(rank, world, backwards=True)


def members_only_forwards(rank: int, world: int) -> None:
    members_only(rank, world, backwards=False)


def disjoint(rank: int, world: int) -> None:
    """At the same position in their programs the ranks ask for different groups."""
    members = [0, 3] if rank in (0, 3) else [1, 2]
    group = dist.new_group(members, use_local_synchronization=True)
    assert_members(group, members)
    alone = dist.new_group([0], use_local_synchronization=True) if rank == 0 else None
    if alone is not None:
        assert_members(alone, [0])
    dist.barrier()
    assert_members(group, members)


def disjoint_by_counter(rank: int, world: int) -> None:
    """As `disjoint`, with names that torch takes from a counter and so are equal for both groups.

    torch calls this a misuse: an error will do, a pair of the wrong ranks will not.
    """
    members = [0, 3] if rank in (0, 3) else [1, 2]
    try:
        group = dist.new_group(members, timeout=timedelta(seconds=5))
        assert_members(group, members)
    except RuntimeError as error:
        assert str(error)


def interleaved(rank: int, world: int) -> None:
    """Two groups over the same ranks and one over two of them, used in turn."""
    first, second = dist.new_group(), dist.new_group()
    pair = dist.new_group([1, 2])
    for i in range(30):
        works = []
        outs = []
        for group in (first, second, None):
            x = torch.full((1 + 500 * (i % 3),), BIT[rank])
            works.append(dist.all_reduce(x, group=group, async_op=True))
            outs.append(x)
        if rank in (1, 2):
            assert_members(pair, [1, 2])
        for work, x in zip(reversed(works), reversed(outs), strict=True):
            work.wait()
            assert torch.equal(x, torch.full_like(x, sum(BIT[:world])))


def one_idle(rank: int, world: int) -> None:
    """A pair's first call needs nobody but the pair."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank < 2:
        assert_members(groups[0], [0, 1])
    dist.barrier()
    if rank >= 2:
        assert_members(groups[1], [2, 3])


def split(rank: int, world: int) -> None:
    """ProcessGroup.split_group, nested, and beside new_group."""
    parent = dist.group.WORLD
    children = {}
    for members in ((0, 1, 2), (1, 3), (3,)):
        child = parent.split_group(list(members), timeout=timedelta(seconds=30))
        assert (child is not None) == (rank in members)
        if child is not None:
            children[members] = child
    other = dist.new_group([0, 3])
    for members, child in children.items():
        assert (child.rank(), child.size()) == (members.index(rank), len(members))
        x = torch.tensor([BIT[rank]])
        child.allreduce([x]).wait()
        assert x.item() == sum(BIT[m] for m in members), members
    if rank in (0, 3):
        assert_members(other, [0, 3])
    if rank in (0, 1, 2):
        grandchild = children[(0, 1, 2)].split_group([1, 2])
        if rank in (1, 2):
            x = torch.tensor([BIT[rank]])
            grandchild.allreduce([x]).wait()
            assert x.item() == 6
    assert_members(None, range(world))


def used_while_others_go(rank: int, world: int) -> None:
    """Destroying a group leaves those over the same ranks alone."""
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        assert_members(group, range(world))
    dist.destroy_process_group(groups[1])
    for group in (groups[0], groups[2], None):
        assert_members(group, range(world))
    again = dist.new_group()
    assert_members(again, range(world))


CASES = [
    (roots, 3),
    (members_only_forwards, 4),
    (members_only_backwards, 4),
    (disjoint, 4),
    (disjoint_by_counter, 4),
    (interleaved, 3),
    (one_idle, 4),
    (split, 4),
    (used_while_others_go, 2),
]
# Its reduce writes to every rank, and it pairs ranks by a name that torch counts on each rank.
BEYOND_GLOO = (roots, members_only_forwards, members_only_backwards, split, disjoint_by_counter)


@pytest.mark.parametrize(("case", "world"), CASES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_groups(case: Callable[[int, int], None], world: int) -> None:
    if BACKEND == "gloo" and case in BEYOND_GLOO:
        pytest.skip("gloo does not do it")
    run_ranks(case, world)


def side_groups(rank: int, world: int) -> None:
    """The functions of dda take groups of gloo, of which not every rank has the same number."""
    import dda

    groups = {members: dist.new_group(list(members)) for members in ((0, 1), (1, 2), (0, 1, 2))}
    for members, group in groups.items():
        if rank in members:
            x = dda.all_reduce(torch.tensor([BIT[rank]]), group=group)
            assert x.item() == sum(BIT[m] for m in members), members


@pytest.mark.skipif(BACKEND == "gloo", reason="a test of dda's own functions")
def test_side_groups_of_gloo_groups() -> None:
    run_ranks(side_groups, 3, backend="gloo")


def detail(rank: int, world: int) -> None:
    """Torch's DETAIL checks find no fault in a right program."""
    group = dist.new_group([0, 1, 2])
    dist.barrier()
    for i in range(20):
        assert_members(None, range(world))
        if rank < 3 and i % 3 == 0:
            assert_members(group, range(3))
    dist.barrier()


def test_detail_debug_raises_no_false_alarm() -> None:
    run_ranks(detail, 4, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
