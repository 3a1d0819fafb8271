import warnings

import chainer
import numpy as np
from rank_tools import need_ranks, raises
from training_runs import (
    BrokenOffError,
    assert_same,
    break_off,
    build,
    folder,
    outcome,
    steady,
)

import nbmn
from nbmn.extensions import create_multi_node_checkpointer
from nbmn.extensions.storage import MANIFEST

OPTIMIZERS = (lambda: chainer.optimizers.MomentumSGD(0.05), chainer.optimizers.Adam)


def checkpointer(comm, path, **options):
    return create_multi_node_checkpointer("run", comm, path=str(path), **options)


def with_checkpoints(comm, path, optimizer, seed, every=2, **options):
    trainer = build(comm, path, optimizer, seed, **options)
    saver = checkpointer(comm, path)
    trainer.extend(saver, trigger=(every, "iteration"))
    return trainer, saver


def check_resume_equals_an_uninterrupted_run(comm):
    comm = steady(comm)
    for make in OPTIMIZERS:
        with folder(comm) as path:
            whole, _ = with_checkpoints(comm, path / "whole", make(), 1)
            whole.run()
            expected = outcome(whole)
            assert not list((path / "whole").glob(f"run.{comm.rank}.*"))  # it ended well

            for error in (BrokenOffError, KeyboardInterrupt)[: 1 + (make is OPTIMIZERS[0])]:
                trainer, _ = with_checkpoints(comm, path / error.__name__, make(), 1)
                break_off(trainer, 7, error)
                resumed, saver = with_checkpoints(comm, path / error.__name__, make(), 2)
                saver.maybe_load(resumed, resumed.updater.get_optimizer("main"))
                assert resumed.updater.iteration == 6
                resumed.run()
                assert_same(outcome(resumed), expected)
            # The ranks' models differ in nothing but running statistics, which do.
            mean = resumed.updater.get_optimizer("main").target.predictor.norm.avg_mean
            assert len({m.tobytes() for m in comm.allgather_obj(mean)}) == comm.size


def check_iterators_that_shuffle_by_themselves(comm):
    comm = steady(comm)

    def sampler(seed, kind=np.random.RandomState):
        return chainer.iterators.ShuffleOrderSampler(kind(seed + comm.rank))

    for kind in (np.random.RandomState, np.random.default_rng):
        with folder(comm) as path:
            whole, _ = with_checkpoints(
                comm, path, chainer.optimizers.Adam(), 1, order_sampler=sampler(5, kind)
            )
            whole.run()
            trainer, _ = with_checkpoints(
                comm, path, chainer.optimizers.Adam(), 1, order_sampler=sampler(5, kind)
            )
            break_off(trainer, 5)
            resumed, saver = with_checkpoints(
                comm, path, chainer.optimizers.Adam(), 2, order_sampler=sampler(9, kind)
            )
            saver.maybe_load(resumed)
            assert resumed.updater.iteration == 4
            resumed.run()
            assert_same(outcome(resumed), outcome(whole))


def damage(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-100])
    elif how == "corrupt":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()


def check_damaged_files_are_passed_over(comm):
    last = comm.size - 1
    name = f"run.{last}.8"
    cases = [
        ("truncated", name, f"{name} has"),
        ("corrupt", name, "checksum"),
        ("missing", name, f"{name} cannot be read"),
        ("missing", name + MANIFEST, "no complete file"),
        ("truncated", name + MANIFEST, "no complete file"),
    ]
    for how, file, text in cases:
        with folder(comm) as path:
            model = chainer.links.Linear(3, 3)
            saver = checkpointer(comm, path)
            for iteration in (4, 6, 8):
                model.W.array[...] = iteration + comm.rank / 8
                saver.save(model, iteration)
            if comm.rank == 0:
                damage(path / file, how)
            comm.barrier()
            saver = checkpointer(comm, path)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                saver.maybe_load(model)
            told = [str(w.message) for w in caught if "cannot be used" in str(w.message)]
            if comm.rank == 0 and (comm.size > 1 or not file.endswith(MANIFEST)):
                assert len(told) == 1, told
                assert text in told[0], told
                assert f"on rank {last}" in told[0], told
            assert (model.W.array == 6 + comm.rank / 8).all()
            assert saver.files == [f"run.{comm.rank}.{iteration}" for iteration in (4, 6)]


def check_nothing_but_damage(comm):
    with folder(comm) as path:
        trainer, _ = with_checkpoints(comm, path, chainer.optimizers.SGD(0.1), 1, every=4)
        break_off(trainer, 5)
        damage(path / f"run.{comm.rank}.4{MANIFEST}", "missing")
        resumed, saver = with_checkpoints(comm, path, chainer.optimizers.SGD(0.1), 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            saver.maybe_load(resumed)
        assert resumed.updater.iteration == 0
        if comm.rank == 0:
            assert any(f"run.{comm.size - 1}.4" in str(w.message) for w in caught)


def check_nothing_saved(comm):
    with folder(comm) as path:
        trainer, saver = with_checkpoints(comm, path, chainer.optimizers.SGD(0.1), 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            saver.maybe_load(trainer)
        assert trainer.updater.iteration == 0
        assert "No" in saver.get_stats()


def check_another_number_of_ranks(comm):
    need_ranks(comm, 2)
    for ranks, now in ((comm.size, comm.size - 1), (comm.size - 1, comm.size)):
        fewer = comm.split(0 if comm.rank < comm.size - 1 else 1, comm.rank)
        by_size = {comm.size: comm, comm.size - 1: fewer}
        with folder(comm) as path:
            if ranks == comm.size or comm.rank < comm.size - 1:
                trainer, _ = with_checkpoints(by_size[ranks], path, chainer.optimizers.SGD(0.1), 1)
                break_off(trainer, 3)
            comm.barrier()
            if now == comm.size or comm.rank < comm.size - 1:
                again, saver = with_checkpoints(by_size[now], path, chainer.optimizers.SGD(0.1), 1)
                with raises(ValueError, f"saved by {ranks} ranks", f"loaded by {now}"):
                    saver.maybe_load(again)


def check_old_ones_are_removed(comm):
    with folder(comm) as path:
        target = chainer.links.Linear(2, 2)
        saver = checkpointer(comm, path, cp_interval=2, gc_interval=3)
        for iteration in range(1, 9):
            target.W.array[...] = iteration + comm.rank / 8
            saver.save(target, iteration)
        comm.barrier()
        kept = sorted(int(file.name.split(".")[2]) for file in path.glob(f"run.{comm.rank}.?"))
        assert kept == [5, 6, 7, 8]
        assert len(list(path.iterdir())) == 2 * 4 * comm.size
        assert "8 checkpoints" in saver.get_stats()

        again = checkpointer(comm, path, cp_interval=2, gc_interval=3)
        other = chainer.links.Linear(2, 2)
        again.maybe_load(other)
        assert (other.W.array == 8 + comm.rank / 8).all()
        again.save(other, 9)
        again.save(other, 10)
        comm.barrier()
        kept = sorted(int(file.name.split(".")[2]) for file in path.glob(f"run.{comm.rank}.*[0-9]"))
        assert kept == [9, 10]
        again.finalize()
        comm.barrier()
        assert not list(path.iterdir())


def check_one_rank_cannot_remove_old_ones(comm):
    with folder(comm) as path:
        saver = checkpointer(comm, path, cp_interval=1, gc_interval=1)
        target = chainer.links.Linear(1, 1)
        for iteration in (1, 2):
            saver.save(target, iteration)
        comm.barrier()
        if comm.rank == comm.size - 1:  # a folder cannot be unlinked
            (path / f"run.{comm.rank}.1").unlink()
            (path / f"run.{comm.rank}.1").mkdir()
        with raises((OSError, RuntimeError), f"run.{comm.size - 1}.1"):
            saver.save(target, 3)


def check_names(comm):
    with folder(comm) as path:
        for bad in ("", "a/b"):
            with raises(ValueError, "file name"):
                create_multi_node_checkpointer(bad, comm)
        with raises(ValueError, "cp_interval"):
            create_multi_node_checkpointer("a", comm, cp_interval=0)
        with raises(ValueError, "path"):
            create_multi_node_checkpointer("a", comm).save(chainer.links.Linear(1, 1), 1)
        dotted = create_multi_node_checkpointer("v1.0 [x]", comm, path=path)
        dotted.save(chainer.links.Linear(1, 1), 1)
        model = chainer.links.Linear(1, 1)
        again = create_multi_node_checkpointer("v1.0 [x]", comm)
        again.maybe_load(model, path=path)
        assert again.files == [f"v1.0 [x].{comm.rank}.1"]


def check_one_rank_cannot_write(comm):
    class Fails(chainer.links.Linear):
        def serialize(self, serializer):
            if comm.rank == comm.size - 1:
                raise OSError("disk full")
            super().serialize(serializer)

    with folder(comm) as path:
        saver = checkpointer(comm, path)
        saver.save(chainer.links.Linear(1, 1), 1)
        with raises((OSError, RuntimeError), "disk full"):
            saver.save(Fails(1, 1), 2)
        model = chainer.links.Linear(1, 1)
        again = checkpointer(comm, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again.maybe_load(model)
        assert again.files == [f"run.{comm.rank}.1"]


def check_file_can_be_read_by_chainer(comm):
    with folder(comm) as path:
        model = chainer.links.Linear(2, 2)
        checkpointer(comm, path).save(model, 3)
        other = chainer.links.Linear(2, 2)
        chainer.serializers.load_npz(str(path / f"run.{comm.rank}.3"), other)
        np.testing.assert_array_equal(other.W.array, model.W.array)
        assert nbmn.create_multi_node_checkpointer is create_multi_node_checkpointer
