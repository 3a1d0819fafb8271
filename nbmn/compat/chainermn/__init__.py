"""Makes ``import chainermn`` mean nbmn, so that a ChainerMN script runs unchanged.

Import this module before ``chainermn``, or leave the script as it is and run it by
``python -m nbmn.compat.chainermn script.py``. ChainerMN's own package is not loaded.

Raises
------
ImportError
    On import: ChainerMN's own package is loaded already.
"""

from nbmn.compat.chainermn.aliases import install

install()
