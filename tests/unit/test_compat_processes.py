"""MultiprocessIterator: right batches from every kind of process, and an end."""

import multiprocessing
import subprocess
import sys
from types import SimpleNamespace

import pytest

from nbmn.compat import processes

pytestmark = pytest.mark.short

DATASET = """
import nbmn
import chainer, numpy as np

class Squares(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 12

    def get_example(self, i):
        return np.full(5, i * i, "f"), i
"""

LOADS = (
    DATASET
    + """
if __name__ == "__main__":
    import multiprocessing, warnings
    warnings.simplefilter("error", DeprecationWarning)
    multiprocessing.set_start_method("{method}")
    iterator = chainer.iterators.MultiprocessIterator(
        Squares(), 4, shuffle=False, n_processes=2
    )
    for batch in range(6):  # two epochs, the first batch measured in this process
        for place, (square, i) in enumerate(iterator.next()):
            assert i == (4 * batch + place) % 12, i
            assert square.dtype == np.float32 and (square == i * i).all(), square
    assert iterator.epoch == 2
    {end}
    print("done")
"""
)


def run_file(path, source, timeout=45):
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_load_the_right_batches(tmp_path, method):
    source = LOADS.format(method=method, end="iterator.finalize()")
    assert run_file(tmp_path / "loads.py", source) == ["done"]


def test_workers_get_datasets_that_no_module_has():
    """As in a notebook, where the class is in no file that a worker could read."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS.format(method="spawn", end="iterator.finalize()")],
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert done.stdout.split() == ["done"], done.stderr


class Rank:
    """Stands for mpi4py.MPI in a rank of a job."""

    def __init__(self, size, over=False):
        self.COMM_WORLD = SimpleNamespace(Get_size=lambda: size)
        self.Is_initialized = lambda: True
        self.Is_finalized = lambda: over


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_are_not_forked(monkeypatch, size):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Rank(size))
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: "fork")
    started = []
    monkeypatch.setattr(processes, "_Pool", lambda *given: started.append(given))
    if size > 1:
        with pytest.raises(RuntimeError, match="forkserver"):
            processes.start_pool(1, print, ("dataset",), None)
        assert not started
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", Rank(size, over=True))
    processes.start_pool(1, print, ("dataset",), None)
    assert started == [(1, print, ("dataset",), None)]


def test_process_ends_with_an_iterator_left_open(tmp_path):
    # Exit functions run last in, first out: this one comes after the iterator's end.
    first = "import atexit\natexit.register(lambda: print('finalized', iterator._finalized))\n"
    source = first + LOADS.format(method="fork", end="")
    assert run_file(tmp_path / "open.py", source) == ["done", "finalized", "True"]


def test_error_of_the_dataset_is_raised_and_later_batches_come(tmp_path):
    source = """
import nbmn, chainer

class Odd(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 8

    def get_example(self, i):
        if i == 3:
            raise ValueError(f"no example {i}")
        return i

if __name__ == "__main__":
    iterator = chainer.iterators.MultiprocessIterator(
        Odd(), 2, repeat=False, shuffle=False, n_processes=2, shared_mem=64
    )
    print(*iterator.next())
    try:
        iterator.next()
    except ValueError as error:
        print(error)
    for batch in iterator:
        print(*batch)
"""
    assert " ".join(run_file(tmp_path / "odd.py", source)) == "0 1 no example 3 4 5 6 7"


def test_work_is_dealt_out_while_no_worker_lives():
    with processes._Pool(1) as pool:
        pool._pool = []
        assert pool.map_async(abs, range(-9, 0)).get(30) == list(range(9, 0, -1))


def test_spawned_workers_that_replace_others_take_no_part_in_mpi(tmp_path):
    source = """
import os, sys
at_import = os.environ.get("MPI4PY_RC_INITIALIZE")
import nbmn, chainer

class Told(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 4

    def get_example(self, i):
        return os.getpid(), sys.modules["__mp_main__"].at_import

if __name__ == "__main__":
    import multiprocessing
    multiprocessing.set_start_method("spawn")
    iterator = chainer.iterators.MultiprocessIterator(
        Told(), 2, shuffle=False, n_processes=1, shared_mem=64, maxtasksperchild=2
    )
    told = [example for _ in range(2) for example in iterator.next()]
    iterator.finalize()
    assert len({pid for pid, _ in told}) == 2, told
    print({value for _, value in told})
"""
    assert run_file(tmp_path / "told.py", source) == ["{'0'}"]


def test_process_ends_with_a_worker_that_is_stuck(tmp_path):
    source = """
import threading
import nbmn, chainer

class Stuck(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 4

    def get_example(self, i):
        if i >= 2:
            threading.Event().wait()
        return i

if __name__ == "__main__":
    iterator = chainer.iterators.MultiprocessIterator(
        Stuck(), 2, shuffle=False, n_processes=2, shared_mem=64
    )
    print(*iterator.next())
"""
    assert run_file(tmp_path / "stuck.py", source) == ["0", "1"]


def test_forked_child_does_not_end_its_parents_iterators(tmp_path):
    source = (
        DATASET
        + """
def child():
    from nbmn.compat import processes
    assert not processes._living()
    own = chainer.iterators.MultiprocessIterator(Squares(), 4, n_processes=1)
    assert list(processes._living()) == [own]

if __name__ == "__main__":
    import multiprocessing
    iterator = chainer.iterators.MultiprocessIterator(Squares(), 4, shuffle=False, n_processes=2)
    iterator.next()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    got = [i for _ in range(5) for _, i in iterator.next()]
    assert got == [4, 5, 6, 7, 8, 9, 10, 11] + list(range(12)), got
    print("done")
"""
    )
    assert run_file(tmp_path / "forks.py", source) == ["done"]


def test_spawned_worker_function_brings_the_repairs():
    """Unpickled in a process without a startup file, it must come before Chainer."""
    import pickle

    from nbmn.compat.processes import start_worker

    code = """
import pickle, sys
sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, "gives_way_to_nbmn")]
pickle.loads(bytes.fromhex(sys.argv[1]))
import chainer
chainer.Variable
"""
    done = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(start_worker).hex()],
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert done.returncode == 0, done.stderr
