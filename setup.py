"""Ships ``nbmn-chainer.pth`` beside the package; all else is in pyproject.toml.

The file makes every Python of the environment repair Chainer when it is imported:
before ``import nbmn``, and in spawned worker processes.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH = "nbmn-chainer.pth"
STARTUP = Path("nbmn", "compat", "startup.py")


class BuildWithPth(build_py):
    """Builds the package, and the ``.pth`` file out of ``nbmn/compat/startup.py``."""

    def run(self) -> None:
        super().run()
        # A .pth file executes single lines that begin with "import".
        source = STARTUP.read_text(encoding="utf-8")
        target = self._pth()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"import sys; exec({source!r}, {{}})\n", encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(self._pth())]

    def _pth(self) -> Path:
        # An editable install's wheel is put together where `install` would install to.
        place = self.get_finalized_command("install").install_lib if self.editable_mode else None
        return Path(place or self.build_lib, PTH)


setup(cmdclass={"build_py": BuildWithPth})
