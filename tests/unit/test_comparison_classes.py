"""Objects of classes that have the same name, and may be other classes, compared over ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from typing import Any

import chainer
import pytest
from comparing import compared, told

NET = """
class Base:
    pass

class Net(Base):
    rate = 0.1
    def __init__(self, size=3):
        self.size = size
    def forward(self, x):
        return x * 2
    @property
    def wide(self):
        return self.size > 2
    @staticmethod
    def helper():
        return {"a", "b"}
"""


def made(code: str = NET, module: str = "__main__") -> Any:
    """A Net, as the given code defines it in a notebook, or in a module of the user's."""
    names: dict[str, Any] = {"__name__": module}
    exec(code, names)
    return names["Net"]()


def test_a_class_that_was_defined_again_is_alike():
    assert told(made(), made(), made()) == {}


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("x * 2", "x * 3", ".forward", "Net.forward, but of another definition"),
        ("> 2", "> 1", ".wide", "Net.wide, but of another definition"),
        ('"b"}', '"c"}', ".helper", "Net.helper, but of another definition"),
        ("0.1", "0.2", ".rate", "0.2, not 0.1"),
        ("size=3", "size=4", ".__init__.__defaults__[0]", "4, not 3"),
        ("def forward", "def backward", ".forward", "is missing"),
    ],
)
def test_what_an_older_definition_does_otherwise_is_named(old, new, path, words):
    found = told(made(), made(NET.replace(old, new)), made())
    assert found[f".__class__{path}"][0] == ((1,), words, (0, 2))
    assert all(name.startswith((".__class__", ".size")) for name in found)


def test_another_base_is_named():
    found = told(made(), made(NET.replace("class Net(Base)", "class Net")))
    assert found[".__class__.__bases__"] == [((1,), "is missing", (0,))]
    other = made(NET.replace("    pass", "    def forward(self, x): pass"))
    assert set(told(made(), other)) == {".__class__.__bases__[0].forward"}


def test_a_class_of_the_same_name_from_another_module(monkeypatch, tmp_path):
    module = types.ModuleType("models")
    module.__file__ = str(tmp_path / "models.py")
    monkeypatch.setitem(sys.modules, "models", module)
    found = told(made(), made(module="models"))
    assert found[".__class__"] == [((1,), "models.Net, not __main__.Net", (0,))]


def test_classes_themselves_and_links_of_the_users():
    assert set(told(type(made()), type(made(NET.replace("* 2", "* 4"))))) == {".forward"}
    link = "import chainer\nclass Net(chainer.Chain):\n    def forward(self, x): return x"
    assert told(made(link), made(link)) == {}
    assert set(told(made(link), made(link + " + 1"))) == {".__class__.forward"}


def test_each_class_is_told_once():
    new = NET.replace("* 2", "* 4")
    one, other = ([made(code)] for code in (NET, new))
    for each in (one, other):
        each += [type(each[0])() for _ in range(3)]
    assert set(told(one, other)) == {"[0].__class__.forward"}


def test_of_a_library_only_the_name_counts():
    paths = compared(chainer.links.Linear(2, 2), chainer.links.Linear(2, 2)).differences
    assert not any("__class__" in difference.path for difference in paths)


def test_constants_come_in_any_order():
    """Processes hash texts differently, unless they are told how."""
    code = (
        "from nbmn.debug.fingerprint import fingerprint\n"
        "def chosen(x): return x in {'a', 'b', 'c', 'd', 'e', ('f', 'g')}\n"
        "print(fingerprint(chosen).leaves[''].digest.hex())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
