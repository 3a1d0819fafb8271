"""How Chainer is imported: the hook, and what is left of it afterwards."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest


def run(code, *options, timeout=60):
    """Run `code` in a fresh Python; return what it printed."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_HOOK = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, "gives_way_to_nbmn")]
"""

STARTUP = (
    WITHOUT_HOOK
    + """
import importlib.machinery, pathlib
place = importlib.machinery.PathFinder.find_spec("nbmn") or importlib.util.find_spec("nbmn")
source = pathlib.Path(place.origin).parent.joinpath("compat", "startup.py").read_text()
exec(source, {})
assert "nbmn" not in sys.modules
"""
)


def test_nbmn_loads_neither_numpy_nor_chainer():
    loaded = run(
        WITHOUT_HOOK
        + """
before = set(sys.modules)
import nbmn
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    ).split()
    assert not {"numpy", "chainer", "scipy", "mpi4py", "IPython", "bokeh"} & set(loaded)


@pytest.mark.short
def test_numpy_is_left_as_it_was():
    run("""
        import nbmn, numpy
        before = dict(vars(numpy))
        import chainer
        after = vars(numpy)
        assert "sctypes" not in after and "float" not in after
        # CuPy, where it is installed, imports modules of NumPy's, which makes them its names.
        changed = {name for name in after if after[name] is not before.get(name)}
        assert {name for name in changed if type(after[name]) is not type(numpy)} == set()
        assert {name for name in before if name not in after} == set()
    """)


FAILING = """
class Fails:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            raise RuntimeError("on purpose")

sys.meta_path.insert(0, fails := Fails())
try:
    import chainer
except RuntimeError:
    pass
else:
    raise SystemExit("the import did not fail")
sys.meta_path.remove(fails)
"""

TRAINS = """
import chainer, numpy as np
from chainer import functions as F, links as L
model = L.Linear(2, 1)
optimizer = chainer.optimizers.SGD(0.1).setup(model)
x = np.eye(2, dtype="f")
for _ in range(100):
    optimizer.update(lambda: F.mean_squared_error(model(x), np.ones((2, 1), "f")))
assert abs(model(x).array - 1).max() < 0.2, model(x)
"""


@pytest.mark.parametrize("module", ["chainer.training", "chainer.functions.array.as_strided"])
def test_import_after_one_that_failed(module):
    run(
        "import sys, nbmn, numpy\nbefore = dict(vars(numpy))\n"
        + FAILING.format(module=module)
        + """
assert not [name for name in sys.modules if name.partition(".")[0] == "chainer"]
now = {name: value for name, value in vars(numpy).items() if type(value) is not type(numpy)}
assert now == {name: value for name, value in before.items() if type(value) is not type(numpy)}
assert not [f for f in sys.meta_path if type(f).__module__ == "nbmn.compat.deferred"]
"""
        + TRAINS
    )


def test_numpy_is_left_as_it_was_when_the_borrowing_file_fails():
    run("""
        import sys, nbmn, numpy
        before = dict(vars(numpy))
        seen = []
        from nbmn.compat import numpy_names
        try:
            with numpy_names._sctypes_lent():
                seen.append(numpy.sctypes)
                raise RuntimeError("on purpose")
        except RuntimeError:
            pass
        assert seen and dict(vars(numpy)) == before
    """)


def test_nbmn_imported_after_chainer_failed_without_it():
    run(
        WITHOUT_HOOK
        + """
try:
    import chainer
except (AttributeError, ImportError):
    pass
else:
    raise SystemExit("Chainer works unrepaired: is nbmn.compat still needed?")
assert [name for name in sys.modules if name.startswith("chainer.")]
import nbmn
"""
        + TRAINS
    )


def test_startup_repairs_chainer_before_nbmn_is_imported():
    run(STARTUP + TRAINS + "\nassert 'nbmn' in sys.modules")


def test_startup_without_nbmn_leaves_chainer_to_itself():
    run(
        STARTUP
        + """
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == "nbmn.compat":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Gone())
import json.tool
try:
    import chainer
except (AttributeError, ImportError) as error:
    assert "nbmn" not in str(error), error
"""
    )


def test_hook_is_installed_once():
    run(
        STARTUP
        + """
import nbmn
from nbmn.compat import hook
assert hook.install() is hook.install()
exec(source, {})
assert len([f for f in sys.meta_path if hasattr(f, "gives_way_to_nbmn")]) == 1
"""
    )


def test_chainer_that_is_loaded_unrepaired_is_reported():
    out = run(
        WITHOUT_HOOK
        + """
import types, warnings
sys.modules["chainer"] = types.ModuleType("chainer")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import nbmn
print(*(w.message for w in caught))
"""
    )
    assert "Restart Python" in out


needs_scipy = pytest.mark.skipif(
    importlib.util.find_spec("scipy") is None, reason="SciPy is not installed"
)


@needs_scipy
def test_seldom_used_packages_load_when_used():
    run("""
        import sys, nbmn, chainer
        import numpy as np
        assert not {"scipy.special", "scipy.linalg", "scipy.io", "PIL.Image"} & set(sys.modules)

        import chainer.functions as F
        got = F.erfinv(np.array([0.5], "f")).array[0]
        assert abs(got - 0.47693628) < 1e-6, got

        from scipy import special
        import scipy.special, scipy.linalg
        from nbmn.compat.deferred import Deferred
        assert special is scipy.special is sys.modules["scipy.special"]
        assert not isinstance(special, Deferred)
        assert not [m for m in list(sys.modules.values()) if isinstance(m, Deferred)]
    """)


@needs_scipy
def test_seldom_used_packages_load_in_many_threads_at_once():
    run("""
        import threading, nbmn, chainer
        from chainer.functions.math import erfcinv, erfcx, erfinv, ndtri
        gate, got = threading.Barrier(8), []

        def use(module):
            gate.wait()
            got.append(module.special.erfinv(0.5))

        modules = [erfcinv, erfcx, erfinv, ndtri] * 2
        threads = [threading.Thread(target=use, args=(m,)) for m in modules]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(got) == 8 and len(set(got)) == 1, got
    """)


def test_a_missing_package_is_missed_as_before():
    run("""
        import sys, nbmn
        sys.modules["PIL"] = sys.modules["scipy"] = None
        import chainer
        from chainer.datasets import image_dataset
        assert image_dataset.available is False
    """)


def test_repaired_files_keep_their_source():
    run("""
        import inspect, nbmn, chainer
        from importlib.machinery import SourceFileLoader
        assert "class Summary" in inspect.getsource(chainer.reporter)
        assert type(chainer.reporter.__spec__.loader) is SourceFileLoader
        assert type(chainer.__loader__) is SourceFileLoader
    """)


def test_repairs_are_listed_and_their_files_exist():
    import importlib.util
    from pathlib import Path

    import nbmn.compat

    rows = nbmn.compat.repairs()
    assert len(rows) >= 10
    folder = Path(importlib.util.find_spec("chainer").origin).parent
    for row in rows:
        assert (folder / row.file).is_file()
        assert row.what
        assert row.why
