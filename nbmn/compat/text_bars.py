"""Progress bars as text on ranks, where ``tqdm.auto`` would draw with widgets.

What a rank displays appears when its cell has ended, and a bar is of no use then; what it
prints appears at once. tqdm takes an engine for a notebook's kernel, and cannot be told.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CHOICE = "tqdm.autonotebook"


class TextBars:
    """Finds and loads :data:`CHOICE` as ``tqdm.std``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == CHOICE else None

    def create_module(self, spec: ModuleSpec) -> None:
        """As Python makes one."""

    def exec_module(self, module: ModuleType) -> None:
        from tqdm.std import tqdm, trange

        module.tqdm, module.trange = tqdm, trange  # type: ignore[attr-defined]


def use_text_bars() -> None:
    """Have tqdm choose text where it has not chosen yet; local, and imports nothing."""
    if not any(isinstance(finder, TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, TextBars())
