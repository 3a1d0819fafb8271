"""Gradients that lie on GPUs go their own way, and the others through host memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbmn.communicators import objects
from nbmn.communicators.backend import Backend, MeanRequest
from nbmn.communicators.errors import MismatchError
from nbmn.communicators.link import Link
from nbmn.communicators.nccl_backend import NcclMeans
from nbmn.communicators.parameters import Table
from nbmn.communicators.staging import StagedMeans
from nbmn.communicators.topology import host_identity
from nbmn.gpu.identity import Identity, identify, odd_ones, reason_to_stage
from nbmn.gpu.runtime import Gpu


@dataclass(frozen=True, slots=True)
class _Parts:
    """One request in two, each prepared by who averages it."""

    device: Any
    host: Any
    """None where there is nothing for it."""


class DeviceBackend:
    """See :class:`Backend`. Which way gradients on GPUs go is settled when the first come.

    Parameters
    ----------
    link
        The ranks.
    host
        Does all that is done in host memory.
    gpu
        By what devices are used; not touched before there are gradients on one.
    nccl
        Try NCCL; otherwise gradients go through host memory always.
    """

    def __init__(self, link: Link, host: Backend, gpu: Gpu, *, nccl: bool) -> None:
        self._link = link
        self._host = host
        self._gpu = gpu
        self._staged = StagedMeans(link, host, gpu.runtime)
        self._nccl = NcclMeans(link, gpu) if nccl else None
        self._met: int | None = None
        self.refusal: str | None = None
        """Why gradients on GPUs go through host memory instead of NCCL, or None."""

    @property
    def host(self) -> Backend:
        """What does all that is done in host memory."""
        return self._host

    def buffer(self, dtype: np.dtype, size: int) -> np.ndarray:
        """See :class:`Backend`; host memory."""
        return self._host.buffer(dtype, size)

    def sum(self, values: np.ndarray) -> None:
        """See :class:`Backend`; of host memory."""
        self._host.sum(values)

    def bcast(self, values: np.ndarray, root: int) -> None:
        """See :class:`Backend`; of host memory."""
        self._host.bcast(values, root)

    def sum_on_device(self, arrays: Sequence[Any]) -> list[Any] | None:
        """Return the sums of arrays that are on GPUs on all ranks; collective.

        All ranks give arrays of the same shapes and dtypes. None, on all ranks, if they
        must go through host memory.
        """
        nccl = self._nccl
        if nccl is None or not nccl.sums({array.dtype for array in arrays}):
            return None
        self._meet(nccl, arrays)
        return None if self.refusal is not None else nccl.sum(arrays)

    def prepare(self, request: MeanRequest) -> Any:
        """See :class:`Backend`."""
        places = {entry.on_device for entry in request.table if entry.present}
        if True not in places:
            return self._host.prepare(request)
        way = self._staged if self._nccl is None or self.refusal is not None else self._nccl
        if False not in places:
            return _Parts(way.prepare(request), None)
        device, host = _split(request, True), _split(request, False)
        return _Parts(way.prepare(device), self._host.prepare(host))

    def mean(self, prepared: Any) -> list[Any]:
        """See :class:`Backend`; what is on a GPU stays there."""
        if not isinstance(prepared, _Parts):
            return self._host.mean(prepared)
        means = self._mean_on_device(prepared.device)
        if prepared.host is not None:
            others = self._host.mean(prepared.host)
            means = [a if a is not None else b for a, b in zip(means, others, strict=True)]
        return means

    def close(self) -> None:
        """See :class:`Backend`."""
        if self._nccl is not None:
            self._nccl.close()
        self._staged.close()
        self._host.close()
        self._met = None

    def _mean_on_device(self, prepared: Any) -> list[Any]:
        nccl = self._nccl
        if nccl is None or (self.refusal is not None and self._met == self._link.generation):
            return self._staged.mean(prepared)
        request: MeanRequest = prepared.request
        self._meet(nccl, request.arrays)
        if self.refusal is None:
            return nccl.mean(prepared if nccl.prepared(prepared) else nccl.prepare(request))
        return self._staged.mean(self._staged.prepare(request))

    def _meet(self, nccl: NcclMeans, arrays: Sequence[Any]) -> None:
        """Settle which way gradients go; collective, does nothing if it is settled.

        Raises
        ------
        MismatchError
            On all ranks: they have different versions of NCCL or CuPy.
        NcclError
            On all ranks: NCCL did not start.
        """
        generation = self._link.generation
        if self._met == generation:
            return
        device = nccl.device_of(arrays)
        mine = identify(self._gpu, host_identity(), device)
        told: list[tuple[Identity, Any]] = objects.allgather(
            self._link, (mine, nccl.standing(device))
        )
        identities = [identity for identity, _ in told]
        refusal = reason_to_stage(identities)
        odd = None if refusal is not None else odd_ones(identities)
        if odd is not None:
            raise MismatchError(odd)
        if refusal is None:
            nccl.start(device, [standing for _, standing in told])
        elif self.refusal is None and self._link.rank == 0:
            warnings.warn(
                f"gradients on GPUs are averaged through host memory, not by NCCL: {refusal}",
                RuntimeWarning,
                stacklevel=2,
            )
        self.refusal = refusal
        self._met = generation


def _split(request: MeanRequest, on_device: bool) -> MeanRequest:
    """Return the request for what is on GPUs, or for what is not."""
    table: Table = tuple(
        entry if entry.on_device == on_device else entry._replace(present=False)
        for entry in request.table
    )
    arrays = [
        array if entry.present else None for entry, array in zip(table, request.arrays, strict=True)
    ]
    return replace(request, table=table, arrays=arrays)
