"""What disturbs a run, by which threshold, and in which order it is named."""

from nodeagent.core.certificate.disturbances import (
    THRESHOLDS,
    MeasuredRate,
    change_thresholds,
    find_disturbances,
    find_verdict,
)


def test_the_biggest_multiple_of_its_threshold_is_first() -> None:
    measured = {
        "remote-memory": MeasuredRate(400, 2**30),
        "sibling": MeasuredRate(310, 3_000_000),
        "thermal-throttling": MeasuredRate(3, 3),
        "steal": None,
    }
    assert [(one.name, one.size) for one in find_disturbances(measured)] == [
        ("sibling", 31.0),
        ("remote-memory", 8.0),
        ("thermal-throttling", 3.0),
    ]


def test_a_cause_is_before_its_effects_which_may_be_bigger() -> None:
    measured = {
        "thermal-throttling": MeasuredRate(2, 2),
        "frequency": MeasuredRate(400, 10**6),
        "frequency-limit": MeasuredRate(30, 10**5),
        "other-tasks": MeasuredRate(35, 10**5),
    }
    names = [one.name for one in find_disturbances(measured)]
    assert names == ["thermal-throttling", "frequency-limit", "frequency", "other-tasks"]
    del measured["thermal-throttling"], measured["frequency-limit"]
    assert [one.name for one in find_disturbances(measured)] == ["frequency", "other-tasks"]


def test_what_is_at_its_threshold_or_too_small_to_measure_does_not_disturb() -> None:
    for name, threshold in THRESHOLDS.items():
        enough = threshold.least
        assert find_disturbances({name: MeasuredRate(threshold.most + 1, enough)})[0].name == name
        assert find_disturbances({name: MeasuredRate(threshold.most, enough)}) == ()
        assert find_disturbances({name: MeasuredRate(1000, enough - 1)}) == ()
        assert threshold.remedy


def test_other_thresholds_change_the_verdict_and_the_order() -> None:
    measured = {"other-tasks": MeasuredRate(30, 300_000), "steal": MeasuredRate(40, 400_000)}
    assert [one.name for one in find_disturbances(measured)] == ["steal", "other-tasks"]
    changed = change_thresholds({"steal": 50, "unknown": 1})
    assert changed.keys() == THRESHOLDS.keys()
    assert [(one.name, one.size) for one in find_disturbances(measured, changed)] == [("other-tasks", 3.0)]
    assert find_verdict(measured, change_thresholds({"steal": 40, "other-tasks": 30})) == "clean"


def test_without_the_time_of_other_tasks_no_run_is_clean() -> None:
    assert find_verdict({"other-tasks": MeasuredRate(0, 0)}) == "clean"
    assert find_verdict({"other-tasks": None}) == find_verdict({}) == "unknown"
    assert find_verdict({"other-tasks": None, "steal": MeasuredRate(500, 10**6)}) == "disturbed"
