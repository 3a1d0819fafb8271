"""Saves each rank's state again and again, so that a run that died goes on."""

from __future__ import annotations

import functools
import re
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainer.serializers import npz
from chainer.training import extension

from nbmn.extensions import generations, storage
from nbmn.extensions.state import RANDOM, capture_random, restore_random
from nbmn.extensions.storage import Generation
from nbmn.extensions.together import together

if TYPE_CHECKING:
    from chainer.training import Trainer

    from nbmn.communicators import Communicator


def create_multi_node_checkpointer(
    name: str, comm: Communicator, cp_interval: int = 5, gc_interval: int = 5, path: Any = None
) -> MultiNodeCheckpointer:
    """Make a trainer extension that saves the trainer on every rank; local.

    ::

        checkpointer = create_multi_node_checkpointer("my run", comm)
        trainer.extend(checkpointer, trigger=(100, "iteration"))
        checkpointer.maybe_load(trainer, optimizer)
        trainer.run()

    Rank ``r`` writes ``<path>/<name>.<r>.<iteration>`` and, when that is complete and on the
    disk, a manifest with its checksum. A run that is started again, with as many ranks, goes
    on from the latest iteration that all ranks have saved undamaged, and computes what
    the first run would have computed: generators of random numbers (Python's, NumPy's, CuPy's,
    those that iterators shuffle with) are saved too. To the last bit where all ranks
    are on one host.

    Parameters
    ----------
    name
        Tells runs apart that save in the same folder; not part of a path.
    comm
        The ranks.
    cp_interval
        How many checkpoints to keep at least.
    gc_interval
        Older ones are removed when there are more than so many.
    path
        Folder, shared by the ranks or not; by default the trainer's ``out``.

    Raises
    ------
    ValueError
        ``name`` is no file name, or an interval is not positive.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"name must be a file name, not {name!r}")
    if cp_interval < 1 or gc_interval < 1:
        raise ValueError(
            f"cp_interval and gc_interval must be positive, not {cp_interval} and {gc_interval}"
        )
    return MultiNodeCheckpointer(name, comm, cp_interval, gc_interval, path)


class MultiNodeCheckpointer(extension.Extension):
    """Made by :func:`create_multi_node_checkpointer`.

    When the trainer ends without an error or an interrupt, its checkpoints are removed.
    """

    priority = -100  # after all extensions whose state is to be saved, as Chainer's snapshot

    def __init__(
        self, name: str, comm: Communicator, cp_interval: int, gc_interval: int, path: Any
    ) -> None:
        self.name = self._series = name  # a trainer may give the extension another name
        self.comm = comm
        self.cp_interval = cp_interval
        self.gc_interval = gc_interval
        self.path = None if path is None else Path(path)
        self.files: list[str] = []
        """This rank's complete files, oldest first."""
        self._durations: list[float] = []
        self._failed = False
        self._run: str | None = None

    def __call__(self, trainer: Trainer) -> None:
        """Save the trainer; collective."""
        if self.path is None:
            self.path = Path(trainer.out)
        self.save(trainer, trainer.updater.iteration)

    def save(self, target: Any, iteration: int) -> None:
        """Save what Chainer can serialize, and the generators of random numbers; collective.

        Raises
        ------
        Exception
            On all ranks: one could not write its file.
        """
        begin = time.perf_counter()
        comm = self.comm
        if self._run is None:
            self._run = comm.bcast_obj(uuid.uuid4().hex)
        everyone = tuple(range(comm.size))
        generation = Generation(self._series, self._run, iteration, comm.size, everyone)
        file = f"{self._series}.{comm.rank}.{iteration}"
        with together(comm, "saving a checkpoint"):
            arrays = {**npz.serialize(target), RANDOM: capture_random(target)}
            save = functools.partial(storage.save_arrays, arrays=arrays)
            storage.write(self._folder() / file, save, generation, time.time())
        self._durations.append(time.perf_counter() - begin)
        # All ranks have it, so nobody will need the oldest ones.
        self.files = [name for name in self.files if name != file] + [file]
        if len(self.files) - self.cp_interval > self.gc_interval:
            with together(comm, "removing old checkpoints"):
                storage.remove(self._folder(), self.files[: -self.cp_interval])
            self.files = self.files[-self.cp_interval :]

    def maybe_load(self, trainer: Any, optimizer: Any = None, path: Any = None) -> None:
        """Load what was saved last, if anything was; collective.

        To be called after all extensions were added to the trainer, directly before ``run``.
        Of damaged and incomplete checkpoints rank 0 warns, and an earlier one is loaded.

        Parameters
        ----------
        trainer
            What was saved: a trainer, or what was given to :meth:`save`.
        optimizer
            Accepted as ChainerMN does, and not needed.
        path
            Folder, if none was given before; by default the trainer's ``out``.

        Raises
        ------
        ValueError
            On all ranks: there were more ranks, or fewer, when it was saved.
        Exception
            On all ranks: what was saved on one does not fit.
        """
        if self.path is None:
            self.path = Path(trainer.out if path is None else path)
        comm, folder = self.comm, self._folder()
        everyone = generations.find(comm, folder, self._series, self._is_own)
        chosen = generations.latest(comm, folder, everyone, range(comm.size), self._refuse)
        if chosen is None:
            generations.warn_of_orphans(comm, folder, self._on_disk)
            return
        mine = everyone[comm.rank]
        with together(comm, f"loading the checkpoint of iteration {chosen.iteration}"):
            arrays = storage.load_arrays(folder / mine[chosen].file)
            npz.NpzDeserializer(arrays).load(trainer)
            restore_random(trainer, arrays[RANDOM])
        order = reversed(generations.in_order(everyone))
        complete = [g for g in order if all(g in found for found in everyone)]
        self.files = [mine[g].file for g in complete[: complete.index(chosen) + 1]]

    def get_stats(self) -> str:
        """Return a sentence on how long this rank took to save."""
        took = self._durations
        if not took:
            return "No checkpoint was saved yet"
        average = sum(took) / len(took)
        return (
            f"{len(took)} checkpoints saved, in {average:.3f} s on average "
            f"({min(took):.3f} to {max(took):.3f} s)"
        )

    def initialize(self, trainer: Trainer) -> None:
        """Called by the trainer before it begins."""
        self._failed = False

    def on_error(self, trainer: Trainer, exc: Exception, tb: Any) -> None:
        """Called by the trainer when it fails: checkpoints will be needed."""
        self._failed = True

    def finalize(self) -> None:
        """Remove this rank's checkpoints, unless an exception ended the training; local."""
        # A trainer finalizes its extensions in any case, and tells them of no interrupt.
        if self._failed or sys.exc_info()[0] is not None or self.path is None:
            return
        storage.remove(self.path, self._on_disk())
        self.files = []

    def _folder(self) -> Path:
        if self.path is None:
            raise ValueError("the checkpointer needs a path where there is no trainer")
        return self.path

    def _on_disk(self) -> list[str]:
        """Return all files that this rank has written under this name."""
        return storage.on_disk(self._folder(), self._is_own)

    def _is_own(self, name: str) -> bool:
        pattern = rf"{re.escape(self._series)}\.{self.comm.rank}\.\d+"
        return re.fullmatch(pattern, name) is not None

    def _refuse(self, generation: Generation) -> str | None:
        if generation.ranks == self.comm.size:
            return None
        return (
            f"the checkpoint {self._series!r} of iteration {generation.iteration} was saved by "
            f"{generation.ranks} ranks and cannot be loaded by {self.comm.size}: start "
            f"{generation.ranks} ranks, or choose another name or path. What "
            "multi_node_snapshot saves can be loaded by another number of ranks"
        )
