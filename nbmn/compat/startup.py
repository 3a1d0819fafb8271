import os
import sys


class NbmnRepairsChainer:
    gives_way_to_nbmn = True

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "chainer":
            return None
        try:
            from nbmn.compat import hook
        except ImportError:
            return None
        return hook.install().find_spec(name, path, target)


if not any(hasattr(finder, "gives_way_to_nbmn") for finder in sys.meta_path):
    sys.meta_path.insert(0, NbmnRepairsChainer)

if "NBMN_AS_CHAINERMN" in os.environ:
    # Started by a script under `python -m nbmn.compat.chainermn`, which it may import anew.
    import importlib.util

    if importlib.util.find_spec("nbmn") is not None:
        import nbmn.compat.chainermn  # noqa: F401
