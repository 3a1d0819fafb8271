"""What is typed after ``%mn_diff``."""

from __future__ import annotations

import re

import pytest
from IPython.core.error import UsageError

from nbmn.magics.diff import Asked, parse


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("model", Asked("model")),
        ("model 0,2", Asked("model", ("0,2",))),
        ("a + b 1:", Asked("a + b", ("1:",))),
        ("a -1", Asked("a -1")),
        ("a.b[0]  1:", Asked("a.b[0]", ("1:",))),
        ("a.b[0] 0, 2 --tol 1", Asked("a.b[0]", ("0,", "2"), 1.0)),
        ("d['x y'] all", Asked("d['x y']", ("all",))),
        ("[x for x in y]", Asked("[x for x in y]")),
        ("model --tol 1e-3", Asked("model", (), 1e-3)),
        ("model 0,1 --tol=0.5", Asked("model", ("0,1",), 0.5)),
        ("model --tol 1 0,1", Asked("model", ("0,1",), 1.0)),
        ("d['x --tol']", Asked("d['x --tol']")),
        ("a --1", Asked("a --1")),
    ],
)
def test_ranks_and_options_come_last(line, asked):
    assert parse(line) == asked


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("model --tolerance 1e-3", "%mn_diff has no option --tolerance; write %mn_diff EXPR [RANK"),
        ("model 0,1 --bg", "no option --bg"),
        ("model --tol", "--tol takes a number such as 1e-3, not ''; write %mn_diff EXPR"),
        ("model --tol x", "not 'x'"),
        ("model --tol -1", "not '-1'"),
        ("model --tol nan", "not 'nan'"),
        ("model x", "'x' is no choice of ranks, such as 0,2; write %mn_diff EXPR [RANKS] [--tol"),
        ("x = 3", "'x = 3' is not an expression"),
        ("model( --tol 1", "is not an expression"),
        ("", "needs an expression"),
    ],
)
def test_a_wrong_option_is_named_with_the_usage(line, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        parse(line)
