"""``python -m nbmn.compat.chainermn``."""

import sys

from nbmn.compat.chainermn.running import main

sys.exit(main(sys.argv[1:]))
