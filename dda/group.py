"""Groups: how a backend is made, and how dda finds the group that a user names.

Every function of dda takes a ``ProcessGroup`` of torch.distributed, or None for the default group.
If its CPU backend is not dda (a gloo group, say), dda makes a *side group* of the same ranks in the
same order, once, and uses that. Making it is collective over the ranks of the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import warnings
import weakref
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from dda._load import extension

if TYPE_CHECKING:
    from dda import _C

_CPU = torch.device("cpu")
# The name of the group that does the work for a group.
_names: weakref.WeakKeyDictionary[dist.ProcessGroup, str] = weakref.WeakKeyDictionary()


def create_backend(opts: Any, pg_options: Any) -> dist.Backend:
    """Makes the backend of one process group; called by torch, collective over the group.

    Args:
        opts: torch's ``DistributedBackendOptions``.
        pg_options: ``dda.Options`` or None.

    Raises:
        TypeError: `pg_options` is of another type.
        dda.Error: the group could not be made; every rank raises.
    """
    c = extension()
    if pg_options is not None and not isinstance(pg_options, c.Options):
        raise TypeError(f"dda: pg_options must be dda.Options, not {type(pg_options).__name__}")
    options = c.Options(
        timeout=opts.timeout,
        slot_bytes=getattr(pg_options, "slot_bytes", 0),
        threads=getattr(pg_options, "threads", 0),
    )
    options.group_name = opts.group_id
    # Disjoint groups that are made at the same time share a store and a name.
    ranks = ",".join(map(str, opts.global_ranks_in_group))
    prefix = "dda/" + hashlib.sha256(ranks.encode()).hexdigest()[:16]
    # torch's name for a group, which opts.store carries, may differ between its members.
    shared = dist.distributed_c10d._get_default_store() if dist.is_initialized() else opts.store
    store = dist.PrefixStore(prefix, shared)
    backend = c.create_backend(store, opts.group_rank, opts.group_size, options)
    if isinstance(backend, c.FallbackBackend):
        warnings.warn(f"{backend.reason}; gloo serves this whole group", stacklevel=2)
    return backend


def backend_of(group: dist.ProcessGroup | None = None) -> _C.DdaBackend:
    """Returns the dda backend that serves a group.

    Raises:
        RuntimeError: the ranks of the group do not all share memory, so that gloo serves it.
    """
    served_by = dist.distributed_c10d._resolve_process_group(name_of(group))  # type: ignore[arg-type]
    backend = served_by._get_backend(_CPU)
    if isinstance(backend, extension().FallbackBackend):
        raise RuntimeError(f"{backend.reason}; this function needs memory that all ranks share")
    return cast("_C.DdaBackend", backend)


def name_of(group: dist.ProcessGroup | None = None) -> str:
    """Returns the name by which torch.ops.dda knows a group; makes its side group if need be.

    Raises:
        TypeError: `group` is not a ProcessGroup; what torch gives a rank that is not a member of a
            new group is none either.
    """
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError("dda: no default group; call torch.distributed.init_process_group")
    try:
        name = _names.get(group)
    except TypeError:
        raise TypeError(
            f"dda: group must be a ProcessGroup of which this rank is a member, not {group!r}"
        ) from None
    if name is None:
        name = _names[group] = _find_or_make(group).group_name
    return name


# A constant to torch.compile. torch.compiler.assume_constant_result would say so too, but imports
# all of the compiler, which takes seconds.
name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find_or_make(group: dist.ProcessGroup) -> dist.ProcessGroup:
    c = extension()
    try:
        backend = group._get_backend(_CPU)
    except RuntimeError:  # a group without CPU tensors, such as one of nccl
        backend = None
    if isinstance(backend, (c.DdaBackend, c.FallbackBackend)):
        return group
    how: dict[str, Any] = {"use_local_synchronization": True, "group_desc": "dda side group"}
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        how["sort_ranks"] = False
    side = dist.new_group(dist.get_process_group_ranks(group), backend="dda", **how)
    weakref.finalize(group, _destroy, side).atexit = False
    return side


def _destroy(side: dist.ProcessGroup) -> None:
    with contextlib.suppress(Exception):  # it may have gone with the default group
        dist.destroy_process_group(side)
