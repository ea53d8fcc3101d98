"""What `oslat` and `cyclictest` of both Debians wrote in guests (rt_tests/, on CPUs 2-3 for a second), and what else could come."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.tools.probe.latency import (
    Delays,
    DelaysByCpu,
    LatencyReportError,
    combine_delays,
    parse_cyclictest,
    parse_oslat,
)

RECORDED = Path(__file__).parent / "rt_tests"
Parse = Callable[[bytes], DelaysByCpu]


def thread(**fields: object) -> bytes:
    return json.dumps(
        {"thread": {"0": {"cpu": 2, "max": 40, "cycles": 6, "histogram": {"3": 4, "12": 1}} | fields}}
    ).encode()


@pytest.mark.parametrize("debian", [12, 13])
def test_oslat_of(debian: int) -> None:
    text = (RECORDED / f"oslat-{debian}.json").read_bytes()
    found = parse_oslat(text)
    assert list(found) == [2, 3]
    for raw in json.loads(text)["thread"].values():
        delays = found[raw["cpu"]]
        assert delays.worst_us == raw["max"]
        assert delays.at_least(1024) == raw["histogram"]["1024"], "all that are longer are in the last one"
        assert delays.samples == sum(raw["histogram"].values())
        assert delays.quantile(500) in {1, 2}


@pytest.mark.parametrize("debian", [12, 13])
def test_cyclictest_of(debian: int) -> None:
    text = (RECORDED / f"cyclictest-{debian}.json").read_bytes()
    found = parse_cyclictest(text)
    assert list(found) == [2, 3]
    for raw in json.loads(text)["thread"].values():
        delays = found[raw["cpu"]]
        assert (delays.worst_us, delays.samples) == (raw["max"], raw["cycles"])
        assert delays.beyond == raw["cycles"] - sum(raw["histogram"].values())
        middle = delays.quantile(500)
        assert middle is not None
        assert raw["min"] <= middle <= raw["max"]


def test_what_is_beyond_the_histogram_is_known_from_the_number_of_all() -> None:
    assert parse_cyclictest(thread()) == {2: Delays(40, ((3, 4), (12, 1)), beyond=1)}
    assert parse_oslat(thread()) == {2: Delays(40, ((3, 4), (12, 1)))}


def test_quantiles_and_thresholds() -> None:
    found = Delays(90, ((1, 90), (5, 9)), beyond=1)
    assert [found.quantile(p) for p in (0, 500, 900, 901, 990, 991)] == [1, 1, 1, 5, 5, None]
    assert [found.at_least(us) for us in (0, 1, 2, 6)] == [100, 100, 10, 1]
    assert Delays(0, ()).quantile(500) is None


def test_cpus_are_put_together() -> None:
    assert combine_delays([Delays(7, ((1, 2), (7, 1))), Delays(90, ((1, 1), (3, 1)), 2)]) == Delays(
        90, ((1, 3), (3, 1), (7, 1)), 2
    )


@pytest.mark.parametrize("parse", [parse_oslat, parse_cyclictest])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not JSON"),
        (b"[]", "an object"),
        (b"{}", "thread: is missing"),
        (b'{"thread": {}}', "must contain at least one thread"),
        (thread(cpu="two"), "thread[0].cpu"),
        (thread(max=-1), "thread[0].max"),
        (thread(histogram={"x": 1}), "microseconds as keys"),
        (thread(histogram={"9" * 11: 1}), "microseconds as keys"),
        (thread(histogram={"1": 1.5}), "thread[0].histogram[1]"),
    ],
)
def test_anything_else_is_refused_with_the_place(parse: Parse, text: bytes, said: str) -> None:
    with pytest.raises(LatencyReportError) as caught:
        parse(text)
    assert said in str(caught.value)
