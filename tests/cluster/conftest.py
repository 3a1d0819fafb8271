"""Notebooks with ranks: one shared by the tests that leave it clean, fresh ones for the others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from notebook_kernel import Notebook
from zoo import RANKS, SETUP


@pytest.fixture
def fresh() -> Iterator[Notebook]:
    """A notebook of this test's own."""
    notebook = Notebook()
    notebook.check("%load_ext nbmn")
    yield notebook
    notebook.close()


@pytest.fixture(scope="session")
def shared_two() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.check("%load_ext nbmn\n%mn_start 2")
    yield notebook
    notebook.close()


@pytest.fixture
def two(shared_two: Notebook) -> Notebook:
    """A notebook with two ranks, shared; the test must leave them working, and ``kept`` there."""
    shared_two.check("%mn kept = comm.rank")
    return shared_two


@pytest.fixture(scope="module")
def module_zoo() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.check(f"%load_ext nbmn\n%mn_start {RANKS}")
    yield notebook
    notebook.close()


@pytest.fixture
def zoo(module_zoo: Notebook) -> Notebook:
    """Four ranks with some functions and a variable that must survive."""
    module_zoo.check(SETUP)
    module_zoo.check("%mn kept = comm.rank")
    return module_zoo


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start their own ranks run last: the shared ones would share the cores."""
    here = os.path.dirname(__file__)
    mine = [item for item in items if str(item.path).startswith(here)]
    late = [item for item in mine if "fresh" in getattr(item, "fixturenames", ())]
    if late:
        items[:] = [item for item in items if item not in late] + late
