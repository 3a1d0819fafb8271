"""Files that are complete or not there."""

import dataclasses
import os

import numpy as np
import pytest

from nbmn.extensions import generations, storage
from nbmn.extensions.storage import Generation

ONE = Generation("run", "a1", 10, 2, (0, 1))


def save(text):
    return lambda path: path.write_text(text)


def own(name):
    return name.startswith("run.0.")


def test_written_with_its_manifest(tmp_path):
    path = tmp_path / "new" / "run.0.10"
    manifest = storage.write(path, save("content"), ONE, 5.0)
    assert sorted(os.listdir(path.parent)) == ["run.0.10", "run.0.10.manifest"]
    assert manifest == storage.Manifest(ONE, "run.0.10", 7, storage.checksum(path), 5.0)
    assert storage.manifests(path.parent, "run", own) == {ONE: manifest}
    assert storage.what_is_wrong(path.parent, manifest) is None


@pytest.mark.parametrize(
    ("content", "text"),
    [("conten", "6 bytes instead of 7"), ("cOntent", "checksum"), (None, "cannot be read")],
)
def test_damage_is_told(tmp_path, content, text):
    path = tmp_path / "run.0.10"
    manifest = storage.write(path, save("content"), ONE, 5.0)
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert text in storage.what_is_wrong(tmp_path, manifest)


def test_what_was_there_stays_until_the_new_file_is_complete(tmp_path):
    path = tmp_path / "latest"
    old = storage.write(path, save("old"), ONE, 5.0)

    def fails(path):
        path.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        storage.write(path, fails, ONE, 6.0)
    assert storage.what_is_wrong(tmp_path, old) is None
    assert sorted(os.listdir(tmp_path)) == ["latest", "latest.manifest"]
    new = storage.write(path, save("new"), ONE, 7.0)
    assert storage.manifests(tmp_path, "run", lambda name: True) == {ONE: new}
    assert storage.what_is_wrong(tmp_path, new) is None


def test_order_in_which_things_come_to_the_disk(tmp_path, monkeypatch):
    """At every step, what is under its name is on the disk, and the manifest comes last."""
    path, steps = tmp_path / "run.0.10", []
    monkeypatch.setattr(
        storage, "sync", lambda p: steps.append((p.name, sorted(os.listdir(tmp_path))))
    )
    storage.write(path, save("x"), ONE, 5.0)
    note = "tmp-run.0.10.manifest"
    assert steps == [
        ("tmp-run.0.10", ["tmp-run.0.10"]),
        (note, ["tmp-run.0.10", note]),
        (tmp_path.name, ["run.0.10", note]),
        (tmp_path.name, ["run.0.10", "run.0.10.manifest"]),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"file": "run.0.10"}', '{"generation": {"writers": 3}}']
)
def test_bad_manifests_are_none(tmp_path, text):
    (tmp_path / "run.0.10.manifest").write_text(text)
    assert storage.manifests(tmp_path, "run", own) == {}


def test_foreign_files_are_left_out(tmp_path):
    for name, series in [("run.0.10", "run"), ("run.1.10", "run"), ("run.0.12", "other")]:
        generation = dataclasses.replace(ONE, series=series)
        storage.write(tmp_path / name, save(name), generation, 5.0)
    (found,) = storage.manifests(tmp_path, "run", own).values()
    assert found.file == "run.0.10"
    assert storage.manifests(tmp_path / "absent", "run", own) == {}


def test_names_that_begin_as_those_of_unfinished_files(tmp_path):
    def mine(name):
        return name.endswith(".0")

    about = dataclasses.replace(ONE, series="tmp-run")
    manifest = storage.write(tmp_path / "tmp-run.0", save("x"), about, 5.0)
    unfinished = tmp_path / "tmp-tmp-run.0.manifest"
    unfinished.write_text(manifest.to_json())
    assert storage.manifests(tmp_path, "tmp-run", mine) == {about: manifest}
    assert "tmp-run.0" in storage.on_disk(tmp_path, lambda name: name.startswith("tmp-run"))


def test_removed_with_all_its_parts(tmp_path):
    storage.write(tmp_path / "run.0.10", save("x"), ONE, 5.0)
    for name in ("tmp-run.0.10", "tmp-run.0.10.manifest", "run.0.100"):
        (tmp_path / name).write_text("left")
    storage.remove(tmp_path, ["run.0.10", "run.0.11"])
    assert os.listdir(tmp_path) == ["run.0.100"]


def test_arrays_and_missing_values(tmp_path):
    arrays = {"a/b": np.arange(3.0), "none": np.asarray(None), "text": np.asarray("ä")}
    storage.save_arrays(tmp_path / "x", arrays)
    loaded = storage.load_arrays(tmp_path / "x")
    assert loaded.keys() == arrays.keys()
    np.testing.assert_array_equal(loaded["a/b"], arrays["a/b"])
    assert loaded["none"][()] is None
    assert str(loaded["text"]) == "ä"


def test_sealed_afterwards(tmp_path):
    path = tmp_path / "run.0.10"
    path.write_text("written by another")
    manifest = storage.seal(path, ONE, 5.0)
    assert storage.what_is_wrong(tmp_path, manifest) is None


def test_latest_by_the_clock_of_the_lowest_rank():
    """A run that began again wrote iteration 4 after another had written 10."""

    def at(run, iteration, written):
        generation = Generation("run", run, iteration, 2, (0, 1))
        return {generation: storage.Manifest(generation, "f", 0, "", written)}

    first = {**at("a", 8, 1.0), **at("a", 10, 2.0), **at("b", 4, 3.0)}
    second = {**at("a", 8, 9.0), **at("b", 4, 0.5), **at("b", 6, 2.5)}
    order = [(g.run, g.iteration) for g in generations.in_order([first, second])]
    assert order == [("b", 4), ("b", 6), ("a", 10), ("a", 8)]
    assert generations.in_order([{}, {}]) == []
