"""Records to bytes and back."""

from __future__ import annotations

import math

import pytest

from nbmn.records import GpuSample, Heartbeat, RunEnded, RunStarted, Step, decode, encode


def test_round_trip_in_order() -> None:
    records = [
        RunStarted(0, "[1]#1", 1.5, "trainer", 10, 2.5),
        Step(1, "[1]#1", 2.0, 1, {"loss": 0.1, "Ω": -1e300}, 32, 0.1),
        Step(1, "r", 2.0, 2, {}),
        RunEnded(0, "r", 3.0, "failed", "ValueError: 🦆"),
        Heartbeat(3, "", 4.0, "waiting", "allreduce", "cell [2] line 3", 1.25),
        GpuSample(1, "r", 5.0, 71 << 30, 80 << 30, 96, 64, "NVLink ×18", "heat"),
        GpuSample(1, "r", 5.0, problem="GPU is lost"),
    ]
    assert decode(encode(records)) == records
    assert decode(encode([])) == []


def test_values_that_are_no_numbers_survive() -> None:
    values = {"nan": math.nan, "up": math.inf, "down": -math.inf}
    (step,) = decode(encode([Step(0, "r", 0.0, 1, values)]))
    assert isinstance(step, Step)
    assert math.isnan(step.values["nan"])
    assert (step.values["up"], step.values["down"]) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    "message", [b"", b"{", b"\xff", b"3", b'[["Step"]]', b'[["Step", [1]]]', b'[["Nobody", []]]']
)
def test_other_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a batch of records"):
        decode(message)
