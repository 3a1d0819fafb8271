"""The file that ranks wait for."""

import json

from IPython.core.profiledir import ProfileDir

from nbmn.cluster.connection_file import Controller


class Watched(dict):
    """Notices whether the file has its name while this is being written to it."""

    def __init__(self, path, values):
        super().__init__(values)
        self._path = path
        self.looks = []

    def items(self):
        self.looks.append(self._path.exists())
        return super().items()


def test_it_is_whole_when_it_is_there(tmp_path):
    path = tmp_path / "engine.json"
    content = Watched(path, {"interface": "tcp://127.0.0.1", "key": "0" * 10})
    controller = Controller()
    controller.profile_dir = ProfileDir.create_profile_dir(str(tmp_path / "profile"))
    controller.profile_dir.security_dir = str(tmp_path)
    controller.save_connection_dict("engine.json", content)
    assert json.loads(path.read_text()) == dict(content)
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in path.parent.iterdir() if "engine" in p.name] == ["engine.json"]
    assert content.looks
    assert not any(content.looks)
