"""Packing and unpacking on the host, by the same rules as on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from nbmn.communicators.parameters import Entry, Packing, Span, plan_packing
from nbmn.gpu.packing import as_dtype, pack, unpack

ml_dtypes = pytest.importorskip("ml_dtypes")
BF16 = np.dtype(ml_dtypes.bfloat16)


def planned(arrays, **kwargs):
    """Packings of arrays, named in order."""
    table = tuple(
        Entry(f"{i:03}", array.shape, array.dtype.str, True) for i, array in enumerate(arrays)
    )
    return plan_packing(table, summed=False, **kwargs)


def normal(*shape, dtype="f4"):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def test_round_trip():
    arrays = [normal(3, 4), normal(), normal(0, 5), normal(7)]
    (packing,) = planned(arrays)
    buffer = np.full(packing.size, np.nan, "f4")
    pack(buffer, packing, arrays)
    parts = unpack(buffer, packing, arrays)
    for part, array in zip(parts, arrays, strict=True):
        assert type(part) is np.ndarray
        assert part.shape == array.shape
        assert np.array_equal(part, array)
    assert parts[0].base is not None
    buffer[:] = 8
    assert (parts[0] == 8).all()


def test_none_is_zeros_and_comes_back():
    arrays = [normal(5), normal(2, 2)]
    (packing,) = planned(arrays)
    buffer = np.full(packing.size, np.nan, "f4")
    pack(buffer, packing, [None, arrays[1]])
    first, second = unpack(buffer, packing, [None, arrays[1]])
    assert first.tolist() == [0] * 5
    assert np.array_equal(second, arrays[1])


def test_arrays_without_a_span_give_none():
    arrays = [normal(5), np.arange(3)]
    integers, reals = planned(arrays)
    assert (integers.dtype, reals.dtype) == (np.dtype("f4"), np.dtype("i8"))
    assert unpack(np.zeros(3, "i8"), reals, arrays)[0] is None


def test_strided_arrays():
    arrays = [normal(4, 6).T, normal(10)[::-2], np.broadcast_to(np.float32(3), (2, 3))]
    (packing,) = planned(arrays)
    buffer = np.empty(packing.size, "f4")
    pack(buffer, packing, arrays)
    assert np.array_equal(buffer, np.concatenate([array.ravel() for array in arrays]))


@pytest.mark.parametrize("wire", ["float16", "float32"])
def test_cast_and_scaled(wire):
    arrays = [normal(40), normal(3, 3, dtype="f8"), normal(9, dtype="f2")]
    (packing,) = planned(arrays, wire=wire)
    assert packing.dtype == wire
    buffer = np.empty(packing.size, wire)
    pack(buffer, packing, arrays, scale=1 / 3)
    third, double = np.float32(1 / 3), np.float64(1 / 3)
    expected = [
        (arrays[0] * third).astype(wire),
        (arrays[1] * double).astype(wire),
        (arrays[2].astype("f4") * third).astype(wire),
    ]
    for part, of, array in zip(unpack(buffer, packing, arrays), expected, arrays, strict=True):
        assert part.dtype == array.dtype
        assert np.array_equal(part, of.reshape(array.shape).astype(array.dtype))


def test_rounded_to_the_wire_before_it_is_scaled():
    array = np.array([1 + 2**-12, 3], "f4")
    (packing,) = planned([array])
    buffer = np.empty(2, "f4")
    pack(buffer, packing, [array], scale=0.1, wire="float16")
    assert buffer.tolist() == [np.float32(0.1), np.float32(3) * np.float32(0.1)]
    pack(buffer, packing, [array], wire="bfloat16")
    assert buffer.tolist() == [1, 3]


def test_bfloat16_in_a_buffer_of_bits():
    assert as_dtype("bfloat16") == BF16
    array = normal(33)
    packing = Packing(BF16, 33, (Span(0, (33,), np.dtype("f4"), 0, 33),))
    bits = np.empty(33, np.uint16)
    pack(bits, packing, [array])
    assert np.array_equal(bits, array.astype(BF16).view(np.uint16))
    (part,) = unpack(bits, packing, [array])
    assert part.dtype == np.float32
    assert np.array_equal(part, array.astype(BF16).astype("f4"))


def test_extremes_are_kept_without_a_word(recwarn):
    array = np.array([1e300, -1e300, np.inf, np.nan, 1e-320, -0.0])
    (packing,) = planned([array], wire="float32")
    buffer = np.empty(6, "f4")
    pack(buffer, packing, [array], scale=2.0)
    assert buffer[:3].tolist() == [np.inf, -np.inf, np.inf]
    assert np.isnan(buffer[3])
    assert np.signbit(buffer[5])
    assert not recwarn.list


def test_the_buffer_may_hold_the_arrays():
    (packing,) = planned([normal(3), normal(4)])
    buffer = np.arange(7, dtype="f4")
    # In its own place, and where the first one is written.
    pack(buffer, packing, [buffer[4:], buffer[:4]], scale=2.0)
    assert buffer.tolist() == [8, 10, 12, 0, 2, 4, 6]
    pack(buffer, packing, unpack(buffer, packing, [None, None]), scale=0.5)
    assert buffer.tolist() == [4, 5, 6, 0, 1, 2, 3]


def test_complex_numbers():
    array = np.array([[1 + 2j], [3 - 1j]], np.complex64)
    (packing,) = planned([array])
    buffer = np.empty(2, np.complex64)
    pack(buffer, packing, [array], scale=0.5, wire="float16")
    assert buffer.tolist() == [0.5 + 1j, 1.5 - 0.5j]


def test_integers_are_copied_and_not_scaled():
    array = np.arange(5)
    (packing,) = planned([array])
    buffer = np.empty(5, "i8")
    pack(buffer, packing, [array])
    assert buffer.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="int64 cannot be scaled"):
        pack(buffer, packing, [array], scale=0.5)


def test_an_array_of_another_size():
    (packing,) = planned([normal(3), normal(4)])
    with pytest.raises(ValueError, match=r"array 1 has shape \(5,\), .* for \(4,\)"):
        pack(np.empty(7, "f4"), packing, [normal(3), normal(5)])
