"""Groups: how a backend is made, and how dda finds the group that a user names.

Every function of dda takes a ``ProcessGroup`` of torch.distributed, or None for the default group.
If its backend for the tensors' device is not dda (but gloo or nccl, say), dda makes a *side group*
of the same ranks in the same order, once, and uses that. Making it is collective over the ranks of
the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import warnings
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.constants import default_pg_timeout

from dda._load import extension

if TYPE_CHECKING:
    from dda import _C

_DEVICES = {"cpu": torch.device("cpu"), "cuda": torch.device("cuda")}
# The name of the group that does the work for a group, by kind of device.
_names: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[str, str]] = weakref.WeakKeyDictionary()
_side_count = itertools.count()


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
    timeout = opts.timeout
    if pg_options is not None and timeout == default_pg_timeout:
        timeout = pg_options._timeout
    options = c.Options(
        timeout=timeout,
        slot_bytes=getattr(pg_options, "slot_bytes", 0),
        threads=getattr(pg_options, "threads", 0),
        calls_before=getattr(pg_options, "calls_before", 0),
    )
    options.group_name = opts.group_id
    # Disjoint groups that are made at the same time share a store and a name.
    ranks = ",".join(map(str, opts.global_ranks_in_group))
    prefix = "dda/" + hashlib.sha256(ranks.encode()).hexdigest()[:16]
    # torch's name for a group, which opts.store carries, may differ between its members.
    shared = c10d._get_default_store() if dist.is_initialized() else opts.store
    store = dist.PrefixStore(prefix, shared)
    backend = c.create_backend(store, opts.group_rank, opts.group_size, options)
    if isinstance(backend, c.FallbackBackend):
        warnings.warn(f"{backend.reason}; gloo serves this whole group", stacklevel=2)
    return backend


def any_backend_of(
    group: dist.ProcessGroup | None = None, device: str = "cpu"
) -> _C.DdaBackend | _C.FallbackBackend:
    """Returns the backend that serves a group: dda's, or gloo's under dda's name."""
    served_by = c10d._resolve_process_group(name_of(group, device))  # type: ignore[arg-type]
    backend = served_by._get_backend(_DEVICES[device])
    return cast("_C.DdaBackend | _C.FallbackBackend", backend)


def backend_of(group: dist.ProcessGroup | None = None, device: str = "cpu") -> _C.DdaBackend:
    """Returns the dda backend that serves a group.

    Raises:
        RuntimeError: the ranks of the group do not all share memory, so that gloo serves it.
    """
    backend = any_backend_of(group, device)
    if isinstance(backend, extension().FallbackBackend):
        raise RuntimeError(f"{backend.reason}; this function needs memory that all ranks share")
    return cast("_C.DdaBackend", backend)


def name_of(group: dist.ProcessGroup | None = None, device: str = "cpu") -> str:
    """Returns the name by which torch.ops.dda knows a group; makes its side group if need be.

    Args:
        group: the group.
        device: the kind of device that the tensors are on, "cpu" or "cuda".

    Raises:
        TypeError: `group` is not a ProcessGroup; what torch gives a rank that is not a member of a
            new group is none either.
    """
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise ValueError("dda: no default group; call torch.distributed.init_process_group")
    try:
        names = _names.setdefault(group, {})
    except TypeError:
        raise TypeError(
            f"dda: group must be a ProcessGroup of which this rank is a member, not {group!r}"
        ) from None
    if device not in names:
        names[device] = _find(group, device) or names.get("side") or _make_side(group)
        if names[device] != group.group_name:
            names["side"] = names[device]
    return names[device]


# A constant to torch.compile. torch.compiler.assume_constant_result would say so too, but imports
# all of the compiler, which takes seconds.
name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _find(group: dist.ProcessGroup, device: str) -> str | None:
    c = extension()
    try:
        backend = group._get_backend(_DEVICES.get(device, torch.device(device)))
    except RuntimeError:  # a group without such tensors
        return None
    ours = isinstance(backend, (c.DdaBackend, c.FallbackBackend))
    return group.group_name if ours else None


def _make_side(group: dist.ProcessGroup) -> str:
    # Not by dist.new_group: it counts the groups of the process, in which the members of this group
    # would then be ahead of other ranks, and names that torch makes of the count must agree.
    options = SimpleNamespace(
        timeout=default_pg_timeout,
        group_id=f"dda/side/{next(_side_count)}",
        group_rank=group.rank(),
        group_size=group.size(),
        global_ranks_in_group=dist.get_process_group_ranks(group),
    )
    store = c10d._get_default_store()
    side = dist.ProcessGroup(store, options.group_rank, options.group_size)
    kind = dist.ProcessGroup.BackendType.CUSTOM
    side._set_default_backend(kind)
    backend = create_backend(options, None)
    for device in _DEVICES.values():
        side._register_backend(device, kind, backend)  # type: ignore[arg-type]
    side._set_group_name(options.group_id)
    c10d._register_process_group(options.group_id, side)
    weakref.finalize(group, _destroy, side).atexit = False
    return side.group_name


def _destroy(side: dist.ProcessGroup) -> None:
    side.shutdown()
    with contextlib.suppress(Exception):  # it may have gone with the default group
        c10d._unregister_process_group(side.group_name)
