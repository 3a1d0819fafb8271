"""ipyparallel's controller, ended with the notebook that started it."""

from nbmn.parent import watch_from_environment

if __name__ == "__main__":
    watch_from_environment()
    from ipyparallel.controller.app import main

    main()
