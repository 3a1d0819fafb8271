"""The file by which ranks find the controller: it is whole as soon as it is there."""

from __future__ import annotations

import os
from typing import Any

from ipyparallel.controller.app import IPController


class Controller(IPController):
    """ipyparallel's, for ranks that start beside it and wait for the file's name."""

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Write a file, and give it its name when it is written."""
        part = f"{fname}.part"
        super().save_connection_dict(part, cdict)
        folder = self.profile_dir.security_dir
        os.replace(os.path.join(folder, part), os.path.join(folder, fname))
