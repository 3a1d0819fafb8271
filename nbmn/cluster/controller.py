"""ipyparallel's controller, ended with the notebook that started it."""

import os

from nbmn.parent import watch_from_environment

if __name__ == "__main__":
    watch_from_environment()
    # The controller forks its heart monitor, and a fork takes no threads along.
    os.register_at_fork(after_in_child=watch_from_environment)
    from ipyparallel.controller.app import main

    main()
