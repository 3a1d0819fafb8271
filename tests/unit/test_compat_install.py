"""The startup file is part of what is installed, in both kinds of wheel."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("setuptools") is None or not (ROOT / "setup.py").is_file(),
    reason="needs setuptools and a source tree",
)


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory):
    tree = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("nbmn", "magics"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_wheel_holds_a_startup_file_that_works(source_tree, tmp_path, kind):
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from setuptools.build_meta import build_{kind} as b; b(sys.argv[1])",
            str(tmp_path),
        ],
        cwd=source_tree,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
        assert "nbmn-chainer.pth," in archive.read(record).decode()
        (line,) = archive.read("nbmn-chainer.pth").decode().splitlines()

        names = set(archive.namelist())

    if kind == "wheel":
        for folder, inside in (("nbmn", "nbmn"), ("magics", "nbmn/magics")):
            files = (f for f in (source_tree / folder).rglob("*") if f.is_file())
            there = {f"{inside}/{f.relative_to(source_tree / folder).as_posix()}" for f in files}
            assert there
            assert there <= names
        assert not [name for name in names if name.startswith("magics")]
    assert line.startswith("import ")  # or the site module would not execute it
    code = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if not hasattr(f, 'gives_way_to_nbmn')]\n"
        "before = set(sys.modules)\n"
        "exec(sys.argv[1])\n"
        "assert set(sys.modules) == before\n"
        "import chainer\n"
        "assert 'nbmn' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, line], check=True, timeout=60)
