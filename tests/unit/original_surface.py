"""Prints, as JSON, what is public in ChainerMN's own package; run in a process of its own.

``modules``
    Per module: its public names.
``same``
    Per dotted name of what has a shorter name too: that.
``calls``
    Per dotted name of a function, class or method: its parameters, each ``[name, kind, default]``
    with the default as :func:`text` writes it, or None without one. None for a property.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import warnings


def text(value):
    """Write a default so that it can be compared across processes."""
    if callable(value):
        name = getattr(value, "__name__", None) or type(value).__name__
        return f"{value.__module__}.{name}"
    return repr(value)


def parameters(function):
    """Describe the parameters of a function or class."""
    return [
        [p.name, p.kind.name, None if p.default is p.empty else text(p.default)]
        for p in inspect.signature(function).parameters.values()
    ]


def names(module):
    """Names in a module that are public and not somebody else's."""
    if module.__name__ == "chainermn.nccl":  # names CuPy's, which may not be there
        imports = ast.walk(ast.parse(inspect.getsource(module)))
        return sorted(
            alias.name
            for node in imports
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
    return [
        name
        for name, value in sorted(vars(module).items())
        if not name.startswith("_")
        and (
            getattr(value, "__module__", "").startswith("chainermn")
            or f"{module.__name__}.{name}"
            == f"chainermn.{name}"
            == getattr(value, "__name__", None)
        )
    ]


def methods(cls):
    """Public methods and calls that ChainerMN, not Chainer, defines on a class."""
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("chainermn"):
            for name, value in vars(base).items():
                if name == "__call__" or not name.startswith("_"):
                    yield name, value


def describe(dotted, value, calls):
    """Enter a function, or a class with its methods."""
    calls[dotted] = parameters(value)
    if inspect.isclass(value):
        for name, member in methods(value):
            if inspect.isfunction(member):
                calls[f"{dotted}.{name}"] = parameters(member)
            elif isinstance(member, property):
                calls[f"{dotted}.{name}"] = None


def main():
    warnings.simplefilter("ignore")
    package = importlib.import_module("chainermn")
    found = [info.name for info in pkgutil.walk_packages(package.__path__, "chainermn.")]
    modules = {
        name: names(importlib.import_module(name))
        for name in ["chainermn", *found]
        if not any(part.startswith("_") for part in name.split("."))
    }
    calls, same, first = {}, {}, {}
    for module in [name for name in modules if name.count(".") < 2]:
        for name in modules[module]:
            dotted, value = f"{module}.{name}", getattr(importlib.import_module(module), name, None)
            known = first.setdefault(id(value), dotted) if callable(value) else dotted
            if known != dotted:
                same[dotted] = known
            elif callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
                describe(dotted, value, calls)
    concrete = importlib.import_module("chainermn.communicators.mpi_communicator_base")
    describe("comm", concrete.MpiCommunicatorBase, calls)
    checkpoint = importlib.import_module("chainermn.extensions.checkpoint")
    describe("checkpointer", checkpoint._MultiNodeCheckpointer, calls)
    optimizers = importlib.import_module("chainermn.optimizers")
    describe("optimizer", optimizers._MultiNodeOptimizer, calls)
    print(json.dumps({"modules": modules, "same": same, "calls": calls}))


if __name__ == "__main__":
    main()
