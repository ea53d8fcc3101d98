"""Wrong values of a job's options: the error names the option that was given, and the value in its hint is accepted."""

from typing import Any

import pytest

from nodeagent.formats.manifest.job_pod import PodOptionError, job_pod

WRONG = {
    "--cpus": ["0", "x", "1e9", "-1", "1Gi,", ""],
    "--memory": ["0", "64", "1e3", "64MB", "3 MB", "1GiB", "1gi", "2.5Ki", "100Ei", "-1Gi", "x", "", "100000000000000000GB"],
    "--hugepages-2Mi": ["0", "3", "3MB", "1Mi", "3Mi", "4e6", "100Ei", "-2Mi", "x", "9EB"],
    "--hugepages-1Gi": ["0", "3MB", "512Mi", "1.5Gi", "1500MB"],
    "--device": ["a", "=2", "a.b/c=0", "a.b/c=0.5", "a.b/c=-1", "a.b/c=2x", "a.b/c=65537", "kubernetes.io/c"],
    "--numa": ["x", "-1", "1.5"],
    "--core-class": ["fast"],
    "--near": ["", "a b"],
    "--name": ["A_b", "a/b", "-"],
    "--governor": ["a/b"],
    "--idle-latency": ["5", "2s", "x"],
    "--min-frequency": ["3", "0MHz"],
    "--max-frequency": ["fast"],
    "--quiet": ["a,b"],
}  # fmt: skip
SETTINGS = {
    "--governor": "governor",
    "--idle-latency": "idleLatency",
    "--min-frequency": "minFrequency",
    "--max-frequency": "maxFrequency",
}


def with_option(option: str, value: str) -> None:
    """Make the pod of a job with one option more than a job needs."""
    amounts = {"cpu": "2", "memory": "1Gi"}
    others: dict[str, Any] = {}
    name = "job"
    if option == "--cpus":
        amounts["cpu"] = value
    elif option == "--device":
        resource, equals, count = value.partition("=")
        amounts[resource] = count if equals else "1"
    elif option == "--memory" or option.startswith("--hugepages-"):
        amounts[option.removeprefix("--")] = value
    elif option == "--name":
        name = value
    elif option in SETTINGS:
        others["quiet"] = f"{SETTINGS[option]}={value}"
    else:
        others[{"--numa": "numa_node", "--core-class": "core_class"}.get(option, option.removeprefix("--"))] = value
    job_pod(name, "uid", amounts, **others)


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in WRONG.items() for value in values])
def test_a_wrong_value_is_told_with_its_option_and_a_value_that_is_accepted(option: str, value: str) -> None:
    with pytest.raises(PodOptionError) as caught:
        with_option(option, value)
    message, hint = caught.value.message, caught.value.hint
    assert message.startswith(f"{option} ")
    assert [other for other in WRONG if other in message.split()] == [option]
    assert hint is not None
    begin, named, accepted = hint.rpartition(f"{option} ")
    assert (begin, named) == ("for instance: ", f"{option} ")
    with_option(option, accepted)


@pytest.mark.parametrize("profile", ["", "quiet,"])
def test_a_lowest_frequency_above_the_highest_can_be_replaced_by_the_advised_one(profile: str) -> None:
    amounts, rest = {"cpu": "2", "memory": "1Gi"}, "maxFrequency=2GHz,governor=performance"
    with pytest.raises(PodOptionError) as caught:
        job_pod("job", "uid", amounts, quiet=f"{profile}minFrequency=3GHz,{rest}")
    assert caught.value.message == '--min-frequency "3GHz" must not be above --max-frequency 2000MHz'
    hint = caught.value.hint or ""
    assert hint == "for instance: --min-frequency 2000MHz"
    assert job_pod("job", "uid", amounts, quiet=f"{profile}minFrequency={hint.split()[-1]},{rest}").quiet


def test_an_amount_is_told_as_it_was_given_and_the_advised_one_is_the_nearest() -> None:
    with pytest.raises(PodOptionError, match=r"^--memory 16Ei: must be at most ") as caught:
        with_option("--memory", "16Ei")
    assert caught.value.hint == "for instance: --memory 64Mi"
    with pytest.raises(PodOptionError, match=r'^--hugepages-2Mi "3MB": MB is not a unit') as caught:
        with_option("--hugepages-2Mi", "3MB")
    assert caught.value.hint == "for instance: --hugepages-2Mi 4Mi"
