"""HTML that lies outside the Python, beside the package that shows it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from string import Template


@cache
def template(package: str, name: str) -> Template:
    """A template of a package's ``templates`` folder."""
    return Template(files(package).joinpath("templates", name).read_text("utf-8"))
