"""Sentences about disturbances, for the summary line after a run and for comparisons."""

from collections.abc import Mapping
from typing import Any

from nodeagent.core.certificate.disturbances import PER_MILLE, PER_SECOND

Document = Mapping[str, Any]

_SENTENCES = {
    "other-tasks": "other tasks ran on its CPUs {} of the time",
    "sibling": "the sibling was busy {} of the time",
    "remote-memory": "{} of its memory was remote",
    "throttling": "a quota kept it off the CPUs {} of the time",
    "thermal-throttling": "heat slowed its CPUs {}",
    "steal": "the hypervisor took {} of the time of one of its CPUs",
    "interrupts": "devices interrupted one of its CPUs {}",
    "frequency": "the frequency of its busy CPUs fell by {}",
    "frequency-limit": "the frequency limit of its CPUs fell by {}",
    "memory-pressure": "all its tasks waited for memory {} of the time",
}
"""Sentences by kind of disturbance. `{}` is replaced by the rate."""


def format_measure(measure: Document) -> str:
    """Format one measure and its main cause as a sentence without a full stop."""
    sentence = _SENTENCES[measure["name"]].format(format_rate(measure["unit"], measure["value"]))
    return f"{sentence} (mostly {measure['source']})" if measure["source"] else sentence


def format_rate(unit: str, rate: int) -> str:
    """Format a rate with its unit, such as `5 times a second` or `2.5 %`."""
    if unit == PER_MILLE:
        return f"{rate / 10:.1f} %" if rate < 100 else f"{round(rate / 10)} %"
    times = "once" if rate == 1 else f"{rate} times"
    return f"{times} a second" if unit == PER_SECOND else times


def summarise_run(document: Document) -> str:
    """Summarise a report in one line: the verdict, and the largest disturbances."""
    found = [format_measure(one) for one in document["disturbances"]]
    unknown = [one["name"] for one in document["measures"] if one["value"] is None]
    said = document["verdict"] + (f": {'; '.join(found)}" if found else "")
    return f"{document['pod']}: {said}" + (f" (unknown: {', '.join(unknown)})" if unknown else "")
