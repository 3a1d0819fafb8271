"""What came before an exception."""

from __future__ import annotations

import linecache

import pytest

from nbmn.communicators import MismatchError
from nbmn.engine.origins import follows_interrupt, origin


def raised(code: str) -> BaseException:
    """What code raises, whose source is known as a cell's is."""
    name = f"<cell {hash(code)}>"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    space = {"MismatchError": MismatchError}
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        exec(compile(code, name, "exec"), space)
    return caught.value


PASSED_ON = {
    "finally": "try:\n    int('x')\nfinally:\n    raise OURS",
    "finally, of an except": (
        "try:\n    try: {}['a']\n    except KeyError:\n        int('x')\nfinally:\n    raise OURS"
    ),
    "with": (
        "class Ends:\n    def __enter__(self): pass\n    def __exit__(self, *_): raise OURS\n"
        "with Ends():\n    int('x')"
    ),
    "in a function": (
        "def f():\n    try:\n        g()\n    finally:\n        end()\ndef g(): int('x')\n"
        "def end(): raise OURS\nf()"
    ),
    "two": (
        "try:\n    try:\n        int('x')\n    finally:\n        raise OURS\n"
        "finally:\n    raise OURS"
    ),
}


@pytest.mark.parametrize("ours", ["MismatchError('m')", "KeyboardInterrupt"])
@pytest.mark.parametrize("code", PASSED_ON.values(), ids=PASSED_ON.keys())
def test_an_error_on_its_way_out(code: str, ours: str) -> None:
    found = origin(raised(code.replace("OURS", ours)))
    assert isinstance(found, ValueError)
    assert "'x'" in str(found)


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    int('x')\nexcept ValueError:\n    raise MismatchError('m')",
        "raise MismatchError('m')",
        # The user's own errors say themselves what they come from.
        "try:\n    int('x')\nfinally:\n    raise KeyError('k')",
        "try:\n    raise KeyboardInterrupt\nfinally:\n    raise MismatchError('m')",
    ],
)
def test_no_error_on_its_way_out(code: str) -> None:
    assert origin(raised(code)) is None


def test_an_unknown_source() -> None:
    with pytest.raises(MismatchError) as caught:
        exec("try:\n    int('x')\nfinally:\n    raise MismatchError('m')")
    assert origin(caught.value) is None


@pytest.mark.parametrize(
    ("code", "follows"),
    [
        ("try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    1 / 0", True),
        ("try: raise KeyboardInterrupt\nexcept BaseException as e: raise OSError from e", True),
        ("try: raise KeyboardInterrupt\nexcept BaseException as e: raise OSError from None", True),
        ("try: raise KeyError\nexcept KeyError: raise KeyboardInterrupt", False),
        ("1 / 0", False),
    ],
)
def test_what_follows_an_interrupt(code: str, follows: bool) -> None:
    assert follows_interrupt(raised(code)) is follows
