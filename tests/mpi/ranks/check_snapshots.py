import warnings

import chainer
import numpy as np
from chainer.training import extensions
from chainer.training.extensions import snapshot_writers
from rank_tools import need_ranks, raises
from training_runs import STEPS, assert_same, break_off, build, folder, outcome, shard, steady

from nbmn.extensions import multi_node_snapshot
from nbmn.extensions.storage import MANIFEST


def with_snapshots(comm, path, seed, sets=(0,), every=2, data=None, writer=None, **options):
    trainer = build(comm, path, chainer.optimizers.Adam(), seed, data=data)
    snapshot = extensions.snapshot(autoload=True, writer=writer, **options)
    wrapped = multi_node_snapshot(comm, snapshot, sets)
    trainer.extend(wrapped, trigger=(every, "iteration"), name="snapshot")
    return trainer


def files(comm, path):
    comm.barrier()
    return sorted(p.name for p in path.iterdir() if not p.name.endswith(MANIFEST))


def load_only(trainer):
    """Initialize the trainer's extensions, as ``run`` does before the first step."""
    trainer.get_extension("snapshot").initialize(trainer)
    return trainer.updater.iteration


def check_resume_equals_an_uninterrupted_run(comm):
    """Though one rank writes for several, each gets its own iterator and random numbers."""
    comm = steady(comm)
    for sets in ([0], []):
        with folder(comm) as path:
            whole = with_snapshots(comm, path / "whole", 1, sets, data=shard(comm, 10))
            whole.run()
            broken = with_snapshots(comm, path / "broken", 1, sets, data=shard(comm, 10))
            break_off(broken, 7)
            writers = {0, min(1, comm.size - 1)} if sets else {0}
            expected = [f"snapshot_iter_{i}.{r}" for i in (2, 4, 6) for r in sorted(writers)]
            assert files(comm, path / "broken") == expected
            resumed = with_snapshots(comm, path / "broken", 2, sets, data=shard(comm, 10))
            resumed.run()
            mine, theirs = outcome(resumed), outcome(whole)
            if comm.rank not in writers:
                # Running statistics and the log so far are the writer's, as a set has
                # these in common.
                mine, theirs = (
                    {k: v for k, v in found.items() if "norm/avg" not in k and k != "log"}
                    for found in (mine, theirs)
                )
            assert_same(mine, theirs)


def check_another_number_of_ranks(comm):
    """From fewer to more and back, where the lowest ranks of the sets stay."""
    need_ranks(comm, 2)
    fewer = comm.split(0 if comm.rank < comm.size - 1 else 1, comm.rank)
    by_size = {comm.size: comm, comm.size - 1: fewer}
    for before, now in ((comm.size, comm.size - 1), (comm.size - 1, comm.size)):
        with folder(comm) as path:
            per_rank = {before: 12, now: 8}
            takes_part = {n: n == comm.size or comm.rank < comm.size - 1 for n in by_size}
            model = None
            if takes_part[before]:
                data = shard(by_size[before], per_rank[before])
                trainer = with_snapshots(by_size[before], path, 1, [], every=5, data=data)
                break_off(trainer, 6)
                model = trainer.updater.get_optimizer("main").target.predictor.first.W.array
            comm.barrier()
            if not takes_part[now]:
                continue
            data = shard(by_size[now], per_rank[now])
            again = with_snapshots(by_size[now], path, 2, [], data=data)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert load_only(again) == 5
            told = [w for w in caught if "begin anew" in str(w.message)]
            assert len(told) == (by_size[now].rank == 0)
            iterator = again.updater.get_iterator("main")
            # 5 batches of 4 of 12 examples are 1 2/3 epochs: of 8 examples, 5 of the second.
            assert (iterator.epoch, iterator.current_position) == (1, 5)
            order = iterator._state.order
            np.testing.assert_array_equal(np.sort(order), np.arange(8))
            everyone = by_size[now].allgather_obj(
                (
                    order.tobytes(),
                    again.updater.get_optimizer("main").target.predictor.first.W.array,
                )
            )
            assert all((weights == everyone[0][1]).all() for _, weights in everyone)
            assert model is None or model.shape == everyone[0][1].shape
            again = with_snapshots(by_size[now], path, 2, [], data=data)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again.run()
            assert again.updater.iteration == STEPS


def check_sets_that_have_no_file(comm):
    need_ranks(comm, 2)
    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [])
        break_off(trainer, 3)
        again = with_snapshots(comm, path, 1, [0])
        with raises(ValueError, "replica set", str(tuple(range(1, comm.size)))):
            load_only(again)


def check_replica_sets_must_be_right(comm):
    for sets, text in (([[]], "empty"), ([comm.size], "ranks only"), ([0, [0]], "two")):
        with raises(ValueError, text):
            multi_node_snapshot(comm, extensions.snapshot(), sets)
    wrapped = multi_node_snapshot(comm, extensions.snapshot(), [iter(range(comm.size))])
    assert wrapped.replica_set == set(range(comm.size))
    assert wrapped.is_master == (comm.rank == 0)


def check_damaged_and_incomplete_are_passed_over(comm):
    for part in ("", MANIFEST):
        with folder(comm) as path:
            trainer = with_snapshots(comm, path, 1)
            break_off(trainer, 7)
            writer = min(1, comm.size - 1)
            name = f"snapshot_iter_6.{writer}{part}"
            comm.barrier()
            if comm.rank == 0:
                (path / name).write_bytes((path / name).read_bytes()[:-10])
            comm.barrier()
            again = with_snapshots(comm, path, 2)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert load_only(again) == 4
            if comm.rank == 0 and (comm.size > 1 or not part):
                told = [str(w.message) for w in caught if "cannot be used" in str(w.message)]
                assert len(told) == 1
                assert f"on rank {writer}" in told[0]
                assert "iteration 6" in told[0]


def check_files_without_manifests_are_told_of(comm):
    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [], filename="snap_{.updater.iteration}")
        break_off(trainer, 3)
        comm.barrier()
        if comm.rank == 0:
            (path / f"snap_2.0{MANIFEST}").unlink()
        comm.barrier()
        again = with_snapshots(comm, path, 2, [], filename="snap_{.updater.iteration}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert load_only(again) == 0
        told = [str(w.message) for w in caught if "nothing is loaded" in str(w.message)]
        assert len(told) == (comm.rank == 0)
        assert all("snap_2.0" in text for text in told)


def check_retained_files(comm):
    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [], n_retains=2)
        break_off(trainer, 9)
        assert files(comm, path) == ["snapshot_iter_6.0", "snapshot_iter_8.0"]
        assert len(list(path.glob(f"*{MANIFEST}"))) == 2


def check_one_name_for_all(comm):
    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [], filename="latest")
        break_off(trainer, 9)
        assert files(comm, path) == ["latest.0"]
        assert load_only(with_snapshots(comm, path, 2, [], filename="latest")) == 8


def check_writers_that_work_aside(comm):
    with folder(comm) as path:
        for kind in (snapshot_writers.ThreadWriter, snapshot_writers.ThreadQueueWriter):
            out = path / kind.__name__
            trainer = with_snapshots(comm, out, 1, [0], writer=kind())
            break_off(trainer, 7)
            assert len(files(comm, out)) == 3 * min(comm.size, 2)
            assert load_only(with_snapshots(comm, out, 2, [0])) == 6


def check_snapshot_of_a_model_and_on_error(comm):
    with folder(comm) as path:
        trainer = build(comm, path, chainer.optimizers.Adam(), 1)
        model = trainer.updater.get_optimizer("main").target
        snapshot = extensions.snapshot_object(
            model, "model_{.updater.iteration}", snapshot_on_error=True, autoload=True
        )
        trainer.extend(
            multi_node_snapshot(comm, snapshot, []), trigger=(100, "iteration"), name="snapshot"
        )
        break_off(trainer, 3)
        assert files(comm, path) == ["model_3.0"]
        before = np.random.get_state()[1].tobytes()
        other = build(comm, path, chainer.optimizers.Adam(), 2)
        target = other.updater.get_optimizer("main").target
        snapshot = extensions.snapshot_object(target, "model_{.updater.iteration}", autoload=True)
        multi_node_snapshot(comm, snapshot, []).initialize(other)
        np.testing.assert_array_equal(target.predictor.first.W.array, model.predictor.first.W.array)
        assert other.updater.iteration == 0
        assert before != np.random.get_state()[1].tobytes()  # as build() seeded it


def check_what_all_saved_is_not_replaced_on_error(comm):
    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [], snapshot_on_error=True)
        break_off(trainer, 4)
        with np.load(path / "snapshot_iter_4.0", allow_pickle=True) as saved:
            ranks = {name.split("/")[1] for name in saved.files if name.startswith("nbmn.rank/")}
        assert ranks == {str(rank) for rank in range(comm.size)}


class Late(snapshot_writers.Writer):
    """Writes when the next one is written, on one rank."""

    def __init__(self, late):
        super().__init__()
        self.late, self.waiting = late, []

    def __call__(self, filename, outdir, target):
        self.waiting.append((filename, outdir, target))
        while len(self.waiting) > self.late:
            filename, outdir, target = self.waiting.pop(0)
            self.save(filename, outdir, target, chainer.serializers.npz.save_npz)


def check_retained_files_are_those_that_all_sets_have(comm):
    """The writer of one set is one snapshot behind: nothing is removed that it needs."""
    need_ranks(comm, 2)
    with folder(comm) as path:
        writer = Late(1 if comm.rank == 1 else 0)
        trainer = with_snapshots(comm, path, 1, [0], writer=writer, n_retains=1)
        break_off(trainer, 9)
        assert files(comm, path) == [
            *("snapshot_iter_6.0", "snapshot_iter_6.1", "snapshot_iter_8.0")
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert load_only(with_snapshots(comm, path, 2, [0])) == 6


class Named:
    def __call__(self, trainer):
        return f"now_{trainer.updater.iteration}"


def check_names_made_by_an_object(comm):
    with folder(comm) as path:
        break_off(with_snapshots(comm, path, 1, [], filename=Named()), 3)
        assert files(comm, path) == ["now_2.0"]
        assert load_only(with_snapshots(comm, path, 2, [], filename=Named())) == 2


def check_one_rank_cannot_write(comm):
    def fails(trainer):
        raise OSError("disk full")

    with folder(comm) as path:
        trainer = with_snapshots(comm, path, 1, [0], filename=fails)
        with raises((OSError, RuntimeError), "disk full"):
            trainer.run(show_loop_exception_msg=False)
        assert comm.allgather_obj(trainer.updater.iteration) == [2] * comm.size
