"""Chainer's check of its environment, which needs packages that are gone."""

from __future__ import annotations

from types import ModuleType

from nbmn.compat.repair import Repair


def _nothing_to_check(module: ModuleType) -> None:
    def check() -> None:
        """Accept the environment; Chainer's own check only ever warned."""

    module.check = check


REPAIRS = (
    Repair(
        "chainer._environment_check",
        "a check that accepts the environment",
        "it imports numpy.distutils and pkg_resources, both gone, only to warn",
        instead=_nothing_to_check,
    ),
)
