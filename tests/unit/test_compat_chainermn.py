"""``import chainermn`` means nbmn: as an import, as a way to run scripts, in their workers."""

import json
import subprocess
import sys
import textwrap

import pytest
from test_compat_import import STARTUP, run

RUN = [sys.executable, "-m", "nbmn.compat.chainermn"]


def start(command, cwd, **options):
    """Run a command; return what came of it."""
    return subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=60, **options
    )


def script(folder, code, name="script.py"):
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return path


@pytest.mark.short
def test_every_way_to_import_it():
    run("""
        import nbmn.compat.chainermn
        import sys
        assert "chainer" not in sys.modules

        import chainermn
        import chainermn.datasets
        import chainermn.communicators as communicators
        from chainermn import scatter_dataset
        from chainermn.extensions import create_multi_node_evaluator
        from chainermn.communicators.communicator_base import CommunicatorBase
        import chainer, nbmn, nbmn.communicators, nbmn.datasets

        assert chainermn.create_communicator is nbmn.create_communicator
        assert communicators.create_communicator is nbmn.create_communicator
        assert scatter_dataset is chainermn.datasets.scatter_dataset is nbmn.scatter_dataset
        assert create_multi_node_evaluator is nbmn.create_multi_node_evaluator
        assert CommunicatorBase is nbmn.communicators.CommunicatorBase
        assert chainermn.optimizers.create_multi_node_optimizer
        assert chainermn.__version__ == chainer.__version__
        assert chainermn.__file__ == nbmn.__file__  # scripts show which copy they have
        assert {"links", "functions", "create_communicator"} <= set(dir(chainermn))
        files = [getattr(m, "__file__", None) or "" for m in list(sys.modules.values())]
        assert not [file for file in files if "/chainermn/" in file and "/compat/" not in file]
        import nbmn.compat.chainermn  # may be repeated
        assert sum(hasattr(f, "stands_for_chainermn") for f in sys.meta_path) == 1
    """)


def test_a_module_named_as_its_function_leaves_the_function():
    run("""
        import nbmn.compat.chainermn
        from chainermn.functions.pseudo_connect import pseudo_connect
        import chainermn.links.create_mnbn_model
        import nbmn.functions, nbmn.links
        assert pseudo_connect is nbmn.functions.pseudo_connect
        assert chainermn.functions.pseudo_connect is pseudo_connect
        assert chainermn.links.create_mnbn_model is nbmn.links.create_mnbn_model
        assert callable(nbmn.links.create_mnbn_model)
    """)


def test_what_is_not_there_is_an_import_error():
    told = run("""
        import nbmn.compat.chainermn
        for line in ["import chainermn.nothing", "import chainermn.functions.nothing",
                     "from chainermn import nothing", "import nbmn; nbmn.nothing"]:
            try:
                exec(line)
            except (ImportError, AttributeError) as error:
                print(type(error).__name__, error)
    """)
    assert told.count("nbmn stands for ChainerMN here and has no such module") == 2
    assert "cannot import name 'nothing' from 'chainermn'" in told
    assert "AttributeError module 'nbmn' has no attribute 'nothing'" in told


def test_an_original_that_is_loaded_is_an_error():
    told = run("""
        import chainermn
        try:
            import nbmn.compat.chainermn
        except ImportError as error:
            print(error)
        assert "site-packages/chainermn" in chainermn.__file__
    """)
    assert "ChainerMN's own package is loaded already" in told
    assert "Restart Python" in told


def test_every_module_of_the_original_means_one_of_nbmn():
    """Those of the original that are left out hold only parts of how it works."""
    from nbmn.compat.chainermn.aliases import MODULES

    code = "import chainermn, pkgutil, json; print(json.dumps([m.name for m in "
    code += "pkgutil.walk_packages(chainermn.__path__, 'chainermn.')]))"
    done = start([sys.executable, "-W", "ignore", "-c", code], None)
    originals = {name for name in json.loads(done.stdout) if "._" not in name}
    inner = {
        f"chainermn.communicators.{kind}_communicator"
        for kind in ("dummy", "flat", "naive", "non_cuda_aware", "pure_nccl")
    }
    inner |= {
        "chainermn.communicators.mpi_communicator_base",
        "chainermn.functions.batch_normalization",
    }
    assert set(MODULES) == (originals | {"chainermn"}) - inner


@pytest.mark.short
def test_a_script_runs_as_python_runs_it(tmp_path):
    path = script(
        tmp_path,
        """
        import json, sys, neighbour, chainermn
        main = sys.modules["__main__"]
        print(json.dumps([sys.argv, sys.path[0], __name__, __file__, main.__file__,
                          "annotations" in globals(), chainermn.create_communicator.__module__]))
        """,
    )
    script(tmp_path, "", "neighbour.py")
    done = start([*RUN, "script.py", "-m", "--help", "a b"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        ["script.py", "-m", "--help", "a b"],
        *(str(tmp_path), "__main__", str(path), str(path)),
        *(False, "nbmn.communicators.factory"),
    ]


def test_a_module_runs_as_python_runs_it(tmp_path):
    code = "import sys, chainermn; print(sys.argv[1:], __name__, chainermn.datasets.__name__)"
    script(tmp_path, code, "train.py")
    done = start([*RUN, "-m", "train", "--epochs", "3"], tmp_path)
    assert done.stdout.split("\n")[0] == "['--epochs', '3'] __main__ nbmn.datasets", done.stderr


def test_an_error_shows_the_script_only(tmp_path):
    path = script(tmp_path, "def f():\n    return 1 / 0\n\nf()\n")
    plain = start([sys.executable, path], tmp_path)
    ours = start([*RUN, path], tmp_path)
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.startswith(plain.stderr)
    as_module = start([*RUN, "-m", "script"], tmp_path)
    assert as_module.stderr.startswith(plain.stderr)


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('over')", 1, "over\n"),
        ("raise SystemExit", 0, ""),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt\n"),
        ("x = (", 1, "SyntaxError: '(' was never closed\n"),
    ],
)
def test_the_exit_status_is_the_scripts(tmp_path, code, status, told):
    done = start([*RUN, script(tmp_path, code)], tmp_path)
    assert done.returncode == status
    assert told in done.stderr
    assert "running.py" not in done.stderr


def test_what_cannot_be_run(tmp_path):
    for arguments, status, told in [
        (["nowhere.py"], 2, "can't open file 'nowhere.py'"),
        ([], 2, "usage: python -m nbmn.compat.chainermn SCRIPT"),
        (["-m"], 2, "argument expected for -m"),
    ]:
        done = start([*RUN, *arguments], tmp_path)
        assert (done.returncode, told in done.stderr) == (status, True), done.stderr
        assert "Traceback" not in done.stderr
    done = start([*RUN, "--help"], tmp_path)
    assert done.returncode == 0
    assert "Run a ChainerMN script unchanged" in done.stdout


def test_a_process_that_a_script_starts():
    told = run(
        "import os\nos.environ['NBMN_AS_CHAINERMN'] = '1'\n"
        + STARTUP.replace(
            'assert "nbmn" not in sys.modules', "import chainermn; print(chainermn.__spec__.origin)"
        )
    )
    assert told == "nbmn\n"


def test_workers_of_a_script_import_it_anew(tmp_path):
    """A spawned worker executes the script's top, ``import chainermn`` with it."""
    path = script(
        tmp_path,
        """
        import multiprocessing
        import chainermn

        def where(_):
            return chainermn.create_communicator.__module__

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(where, [0]))
        """,
    )
    done = start([*RUN, path], tmp_path)
    assert done.stdout == "['nbmn.communicators.factory']\n", done.stderr
