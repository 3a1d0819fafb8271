"""Repairs Chainer at the moment it is imported."""


def install() -> None:
    """Install the import hook (to be written)."""
