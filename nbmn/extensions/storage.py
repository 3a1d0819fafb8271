"""Files that are complete or not there: data, its checksum, and a manifest that comes last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

MANIFEST = ".manifest"
"""What the name of a file's manifest has after the name of the file."""
TEMPORARY = "tmp-"
"""What names of unfinished files begin with, before the name of the file."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What files of several ranks have in common that belong together."""

    series: str
    """What is saved again and again: the name of a checkpointer or of a snapshot."""
    run: str
    """Identifies the run that saved it."""
    iteration: int
    ranks: int
    """How many ranks the run had."""
    writers: tuple[int, ...]
    """The ranks that wrote a file each."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Says that a file is complete, and how to tell."""

    generation: Generation
    file: str
    size: int
    """Bytes."""
    checksum: str
    written: float
    """Seconds since the epoch, by the writer's clock."""

    def to_json(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Return it from a text.

        Raises
        ------
        ValueError
            It is not a manifest.
        """
        try:
            fields = json.loads(text)
            about = fields.pop("generation")
            about["writers"] = tuple(about["writers"])
            return Manifest(Generation(**about), **fields)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a manifest ({error!r})") from error


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as ``numpy.savez`` does; not compressed, as weights hardly can be."""
    with path.open("wb") as file:
        np.savez(file, **arrays)


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file whose checksum was found right."""
    # Chainer saves a missing value as an array of the object None.
    with np.load(path, allow_pickle=True) as file:
        return {name: file[name] for name in file.files}


def write(path: Path, save: Callable[[Path], None], generation: Generation, now: float) -> Manifest:
    """Write a file and then its manifest; what was there before stays until they are complete.

    Parameters
    ----------
    save
        Writes the file's content to a path.
    now
        Seconds since the epoch.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = temporary(path)
    try:
        save(unfinished)
        manifest = _describe(unfinished, path.name, generation, now)
        with _prepared(manifest, path):
            unfinished.replace(path)
            sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)
    return manifest


def seal(path: Path, generation: Generation, now: float) -> Manifest:
    """Write the manifest of a file that is there and complete."""
    manifest = _describe(path, path.name, generation, now)
    with _prepared(manifest, path):
        sync(path.parent)
    return manifest


def temporary(path: Path) -> Path:
    """Return where a file is written before it gets its name."""
    # Of this name only, as each file has one writer: what a dead process left is overwritten.
    return path.with_name(TEMPORARY + path.name)


def _describe(path: Path, name: str, generation: Generation, now: float) -> Manifest:
    sync(path)
    return Manifest(generation, name, path.stat().st_size, checksum(path), now)


@contextmanager
def _prepared(manifest: Manifest, path: Path) -> Iterator[None]:
    """Bring a manifest to the disk, run the body, and give the manifest its name."""
    final = manifest_of(path)
    unfinished = temporary(final)
    try:
        unfinished.write_text(manifest.to_json())
        sync(unfinished)
        yield
        unfinished.replace(final)
        sync(final.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def manifest_of(path: Path) -> Path:
    """Return the path of a file's manifest."""
    return path.with_name(path.name + MANIFEST)


def checksum(path: Path) -> str:
    """Return 128 bits of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def what_is_wrong(folder: Path, manifest: Manifest) -> str | None:
    """Say why a file is not what its manifest says; None if it is."""
    path = folder / manifest.file
    try:
        size = path.stat().st_size
        if size != manifest.size:
            return f"{path} has {size} bytes instead of {manifest.size}"
        if checksum(path) != manifest.checksum:
            return f"{path} does not have the checksum it was written with"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def manifests(
    folder: Path, series: str, is_own: Callable[[str], bool]
) -> dict[Generation, Manifest]:
    """Return the manifests of a series among those of files with the right names.

    Those that cannot be read are left out: they make their generation incomplete.
    """
    found: dict[Generation, Manifest] = {}
    for path in sorted(folder.glob(f"*{MANIFEST}")):
        name = path.name.removesuffix(MANIFEST)
        if not is_own(name):
            continue
        with suppress(OSError, ValueError):
            manifest = Manifest.from_json(path.read_text())
            # An unfinished one has another name than its file.
            if manifest.generation.series == series and manifest.file == name:
                found[manifest.generation] = manifest
    return found


def on_disk(folder: Path, is_own: Callable[[str], bool]) -> list[str]:
    """Return the names of files with the right names of which there is any part."""
    found = [path.name.removesuffix(MANIFEST) for path in folder.glob("*")]
    # The name of a file may begin like that of an unfinished one.
    names = {*found, *(name.removeprefix(TEMPORARY) for name in found)}
    return sorted(filter(is_own, names))


def remove(folder: Path, files: Iterable[str]) -> None:
    """Remove files with their manifests, which go first, and what is unfinished of them."""
    for name in files:
        path = folder / name
        for part in (manifest_of(path), path, temporary(manifest_of(path)), temporary(path)):
            part.unlink(missing_ok=True)


def newest_first(found: Iterable[Manifest]) -> list[Manifest]:
    """Order manifests by when they were written."""
    return sorted(found, key=lambda m: (m.written, m.generation.iteration), reverse=True)
