"""Chainer's snapshot on several ranks: those that have the same state share a file."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainer.serializers import npz
from chainer.training import extension
from chainer.training.extensions import snapshot_writers

from nbmn.extensions import generations, storage
from nbmn.extensions.replica_sets import parse_replica_sets
from nbmn.extensions.state import RANDOM, Arrays, capture_own, fit_iterators, restore_random
from nbmn.extensions.storage import Generation
from nbmn.extensions.together import together

if TYPE_CHECKING:
    from chainer.training import Trainer

    from nbmn.communicators import Communicator

_OWN = "nbmn.rank/"
"""With a rank and a slash, what comes before the names of what that rank has for itself."""


def multi_node_snapshot(
    comm: Communicator, snapshot: Any, replica_sets: Iterable[int | Iterable[int]]
) -> MultiNodeSnapshot:
    """Make a snapshot extension save one file for each set of ranks with the same state; local.

    The lowest rank of each set writes, under the snapshot's file name with ``.<rank>``
    appended, and then a manifest with the file's checksum. With ``autoload`` the latest
    snapshot that is complete and undamaged in all sets is loaded when training starts, and
    every rank gets the state of its set's file: the same on all ranks of a set but for what each
    rank has for itself (iterators and random numbers), which is in the file too.

    With as many ranks as before, training then computes what it would have computed without a
    break (to the last bit, as with :func:`create_multi_node_checkpointer`). With another
    number it works if each set's lowest rank has a file, as with ``[0]`` or ``[]``: random numbers
    start anew, and iterators go on at the same fraction of the epoch, in a new order.

    Parameters
    ----------
    comm
        The ranks; the extension must be added to the trainers of all.
    snapshot
        What ``chainer.training.extensions.snapshot`` or ``snapshot_object`` returns; its
        trigger, condition (asked on the writing ranks), writer, ``n_retains``, ``autoload`` and
        ``snapshot_on_error`` hold.
    replica_sets
        Each set one rank or several; ranks in none make one more set. ``[0]``: rank 0 alone (it
        may have extensions that others have not), and all others together. ``[]``: all
        together.

    Raises
    ------
    TypeError, ValueError
        ``replica_sets`` are not disjoint sets of ranks.
    """
    return MultiNodeSnapshot(comm, snapshot, replica_sets)


class MultiNodeSnapshot(extension.Extension):
    """Made by :func:`multi_node_snapshot`."""

    def __init__(
        self, comm: Communicator, snapshot: Any, replica_sets: Iterable[int | Iterable[int]]
    ) -> None:
        self.comm = comm
        self.snapshot = snapshot
        self.trigger = snapshot.trigger
        self.priority = snapshot.priority
        self._sets = parse_replica_sets(replica_sets, comm.size)
        self._set = next(i for i, ranks in enumerate(self._sets) if comm.rank in ranks)
        self.replica_set = set(self._sets[self._set])
        self.master = min(self.replica_set)
        self._series = _series(snapshot.filename)
        self._members: Communicator | None = None
        self._run = ""
        self._retains = False
        self._written = -1
        """The iteration of what this rank wrote last."""
        self._unsealed: list[_Unsealed] = []

    @property
    def is_master(self) -> bool:
        """This rank reads and writes the file of its set."""
        return self.master == self.comm.rank

    def initialize(self, trainer: Trainer) -> None:
        """Load the latest snapshot, if the snapshot is to; collective.

        Raises
        ------
        ValueError
            On all ranks: a set has no file, because there were other sets or fewer ranks.
        Exception
            On all ranks: what was saved does not fit on one.
        """
        # Not a part of making the extension, which a user may do on some ranks first.
        self._members = self.comm.split(self._set, self.comm.rank)
        self._run = self.comm.bcast_obj(uuid.uuid4().hex)
        self._retains = self.comm.any_rank(self.snapshot.n_retains > 0)
        if self.snapshot.autoload:
            self._load(self._target(trainer), Path(trainer.out))

    def __call__(self, trainer: Trainer) -> None:
        """Save; collective.

        Raises
        ------
        Exception
            On all ranks: one could not write.
        """
        assert self._members is not None
        mine: Arrays = {}
        with together(self.comm, "saving a snapshot"):
            mine = capture_own(self._target(trainer))
        own = self._members.gather_obj(mine)
        with together(self.comm, "saving a snapshot"):
            if self.is_master and self.snapshot.condition():
                self._write(trainer, dict(zip(sorted(self.replica_set), own, strict=True)))
        if self._retains:
            self._remove_old(Path(trainer.out))

    def on_error(self, trainer: Trainer, exc: Exception, tb: Any) -> None:
        """Save on this rank, if the snapshot is to; local, as other ranks may be well.

        Not in place of what was saved of this iteration on all ranks.
        """
        saved = self._written == trainer.updater.iteration
        if self.is_master and self.snapshot._snapshot_on_error and not saved:
            self._write(trainer, {self.comm.rank: capture_own(self._target(trainer))})

    def finalize(self) -> None:
        """Wait until everything is written; local."""
        self.snapshot.finalize()
        self._seal()

    def _target(self, trainer: Trainer) -> Any:
        return trainer if self.snapshot._target is None else self.snapshot._target

    def _write(self, trainer: Trainer, own: dict[int, Arrays]) -> None:
        arrays = {**npz.serialize(self._target(trainer)), **own[self.comm.rank]}
        for rank, theirs in own.items():
            arrays |= {f"{_OWN}{rank}/{name}": array for name, array in theirs.items()}
        filename = self.snapshot.filename
        name = filename(trainer) if callable(filename) else filename.format(trainer)
        path = Path(trainer.out) / f"{name}.{self.comm.rank}"
        masters = tuple(sorted(ranks[0] for ranks in self._sets))
        generation = Generation(
            self._series, self._run, trainer.updater.iteration, self.comm.size, masters
        )
        writer = self.snapshot.writer
        if type(writer) is snapshot_writers.SimpleWriter and writer._savefun is npz.save_npz:
            storage.write(path, lambda p: storage.save_arrays(p, arrays), generation, time.time())
        else:
            # It may be at work yet when it returns, and training goes on: so it gets copies.
            self._unsealed.append(_Unsealed(path, generation, _stamp(path)))
            writer(path.name, str(path.parent), {name: a.copy() for name, a in arrays.items()})
            self._seal()
        self._written = generation.iteration

    def _seal(self) -> None:
        """Write manifests of files that were left to a writer and are there by now."""
        done = [left for left in self._unsealed if _stamp(left.path) != left.before]
        for left in done:
            storage.seal(left.path, left.generation, time.time())
        self._unsealed = [left for left in self._unsealed if left not in done]

    def _remove_old(self, folder: Path) -> None:
        """Remove what is older than the latest that all sets have, as many as are kept; collective.

        Of a writer that works aside one set may have files that another has not yet.
        """
        everyone = generations.find(self.comm, folder, self._series, self._is_own)
        order = generations.in_order(everyone)
        masters = [ranks[0] for ranks in self._sets]
        complete = [g for g in order if all(g in everyone[rank] for rank in masters)]
        keep, mine = self.snapshot.n_retains, everyone[self.comm.rank]
        with together(self.comm, "removing old snapshots"):
            if self.is_master and 0 < keep < len(order) and keep <= len(complete):
                old = order[order.index(complete[keep - 1]) + 1 :]
                storage.remove(folder, [mine[g].file for g in old if g in mine])

    def _is_own(self, name: str) -> bool:
        return name.endswith(f".{self.comm.rank}")

    def _on_disk(self, folder: Path) -> list[str]:
        """Return what looks like this rank's snapshots; the end of their names is its rank."""
        filename = self.snapshot.filename
        if callable(filename) or not self.is_master:
            return []
        begin = filename.split("{")[0]
        return storage.on_disk(folder, lambda n: n.startswith(begin) and self._is_own(n))

    def _load(self, target: Any, folder: Path) -> None:
        assert self._members is not None
        comm = self.comm
        everyone = generations.find(comm, folder, self._series, self._is_own)
        masters = [ranks[0] for ranks in self._sets]
        chosen = generations.latest(comm, folder, everyone, masters, self._refuse)
        if chosen is None:
            generations.warn_of_orphans(comm, folder, lambda: self._on_disk(folder))
            return
        arrays: Arrays = {}
        with together(comm, "reading a snapshot"):
            if self.is_master:
                arrays = storage.load_arrays(folder / everyone[comm.rank][chosen].file)
        arrays = self._members.bcast_obj(arrays)
        with together(comm, f"loading the snapshot of iteration {chosen.iteration}"):
            exact = self._restore(target, arrays, chosen.ranks == comm.size)
        if comm.any_rank(not exact) and comm.rank == 0:
            warnings.warn(
                f"the snapshot of iteration {chosen.iteration} ({chosen.ranks} ranks then, "
                f"{comm.size} now) lacks the iterators and random numbers of some ranks: they "
                "begin anew, at the same fraction of the epoch",
                stacklevel=2,
            )

    def _restore(self, target: Any, arrays: Arrays, as_many: bool) -> bool:
        """Load arrays; return whether what this rank has for itself was among them."""
        prefix = f"{_OWN}{self.comm.rank}/"
        own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
        fresh = capture_own(target)
        if as_many and own.keys() >= fresh.keys():
            npz.NpzDeserializer({**arrays, **own}).load(target)
            if RANDOM in own:
                restore_random(target, own[RANDOM])
            return True
        npz.NpzDeserializer(fit_iterators(arrays, fresh)).load(target)
        return not fresh

    def _refuse(self, generation: Generation) -> str | None:
        missing = [ranks for ranks in self._sets if ranks[0] not in generation.writers]
        if not missing:
            return None
        return (
            f"the snapshot of iteration {generation.iteration} was saved by {generation.ranks} "
            f"ranks, of which {list(generation.writers)} wrote a file each; there is none for "
            f"the replica set{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of the "
            f"{self.comm.size} ranks now: choose replica_sets with the same lowest ranks"
        )


@dataclass(frozen=True, slots=True)
class _Unsealed:
    """A file without a manifest yet."""

    path: Path
    generation: Generation
    before: tuple[int, int] | None
    """The stamp of what was there when the writer began."""


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tell one file from another of the same name; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _series(filename: Any) -> str:
    if callable(filename):
        named = filename if hasattr(filename, "__qualname__") else type(filename)
        return f"{named.__module__}.{named.__qualname__}"
    return filename
