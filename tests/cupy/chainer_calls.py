"""What is called of Chainer on a device: every function, link, optimizer, hook and distribution.

A call takes a source of arrays `a` and returns a variable or a list of them. ``a.x(2, 3)`` is a
variable of floats in (0, 1) whose gradient is asked for, ``a.f(2, 3)`` such an array, and
``a.i(9, 2, 3)`` one of ints below 9.
"""

from __future__ import annotations

from distribution_calls import DISTRIBUTIONS, INITIALIZERS
from function_calls import FUNCTIONS
from link_calls import LINKS
from number_calls import NUMBERS
from training_calls import OPTIMIZERS, OTHERS

ALL = {
    **FUNCTIONS,
    **NUMBERS,
    **{f"L.{name}": call for name, call in LINKS.items()},
    **{f"optimizer {name}": call for name, call in OPTIMIZERS.items()},
    **{f"D.{name}": call for name, call in DISTRIBUTIONS.items()},
    **{f"initializer {name}": call for name, call in INITIALIZERS.items()},
    **OTHERS,
}
