"""Every decision of the reference, in every field: `default` in full, of the others a quarter per ordinary run. Devices that kubelet draws
at random are the first by ID.

The same scenarios under `fixed` break no invariant, and a restart changes nothing there.
"""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, violations
from nodeagent.core.model.config import Errata
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.formats.scenario.scenario import Document, Scenario, ScenarioStep, scenario_from_text
from nodeagent.views.simulate.scenario_replay import Replay, replay
from tests.support.decision_vectors import FILES, difference, vectors
from tests.support.shares import share

COUNTS = {
    "default": 250,
    "options": 450,
    "topology": 300,
    "memory": 249,
    "podlevel": 396,
    "restart": 220,
    "start": 291,
    "all": 398,
    "devices": 935,
}


@pytest.fixture(params=FILES)
def chosen(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]]]:
    """The name of a file, and those of its vectors that this run replays."""
    name: str = request.param
    everything = list(vectors(name))
    assert len(everything) == COUNTS[name]
    return name, everything if name == "default" else list(share(everything))


def test_decides_as_the_reference(chosen: tuple[str, list[dict[str, Any]]]) -> None:
    found = []
    name, these = chosen
    for vector in these:
        scenario = scenario_from_text(json.dumps(vector["scenario"]), name)
        # Through JSON, as it is printed: tuples and keys that aren't strings would otherwise pass.
        result = json.loads(json.dumps(replay(scenario)))
        place = difference(vector["expected"], result)
        if place:
            found.append(f"{scenario.id}{place[:400]}")
    assert not found, f"{len(found)} differ, the first are\n" + "\n".join(found[:5])


class Watched(Replay):
    """A replay under `fixed`, and what is wrong with it."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(replace(scenario, placement=replace(scenario.placement, errata=Errata.FIXED)))
        self.found: list[str] = []

    def replay_step(self, managers: Managers, step: ScenarioStep) -> Document:
        before, pods = self.promises, self.pods
        shown = super().replay_step(managers, step)
        is_whole = self.is_swept or step.op == "restart"
        wrong = [v.text for v in violations(managers, self.promises, self.pods)] if is_whole else []
        if step.op == "restart":
            if "error" in shown or self.pods != pods:
                wrong.append(f"a restart refused: {shown}")
            elif held(self.promises) != held(before):
                wrong.append(f"a restart made {held(self.promises)} of {held(before)}")
        self.found += [f"{self.scenario.id}, {step.op}: {each}" for each in wrong]
        return shown


def held(promises: Promises) -> object:
    """All that is in the managers' files: no hints, and no plugin's answer that says nothing."""
    pods = []
    for uid, pod in promises.pods:
        devices = pod.of(DeviceHoldings)
        said = ((name, tuple(one for one in of_name if one[1])) for name, of_name in devices.answers)
        answers = tuple(one for one in said if one[1])
        pods.append((uid, replace(pod, hints=()).having(replace(devices, answers=answers))))
    return default_set(promises), memory_accounts(promises), [(uid, pod) for uid, pod in pods if not pod.is_nothing]


def without_metrics(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_metrics(each) for key, each in value.items() if key != "metrics"}
    return [without_metrics(each) for each in value] if isinstance(value, list) else value


NO_ERRATA_BUT_GAUGES = ("default", "topology")
"""Even machines, and no options, memory, pods with resources of their own or restarts: nothing for `fixed` to do better."""


def test_under_fixed_no_invariant_breaks_and_restarts_change_nothing(chosen: tuple[str, list[dict[str, Any]]]) -> None:
    found = []
    name, these = chosen
    for vector in these:
        watched = Watched(scenario_from_text(json.dumps(vector["scenario"]), name))
        result = json.loads(json.dumps(watched.run()))
        found += watched.found
        if name in NO_ERRATA_BUT_GAUGES:
            place = difference(without_metrics(vector["expected"]), without_metrics(result))
            found += [] if place is None else [f"{watched.scenario.id}{place[:400]}"]
    assert not found, f"{len(found)} wrong, the first are\n" + "\n".join(found[:5])


def test_a_difference_is_seen() -> None:
    vector = next(vectors("default"))
    result = json.loads(json.dumps(replay(scenario_from_text(json.dumps(vector["scenario"]), "default"))))
    assert difference(vector["expected"], result) is None
    result["steps"][-1]["metrics"]["kubelet_cpu_manager_pinning_requests_total"] += 1
    assert difference(vector["expected"], result) == (
        f".steps[{len(result['steps']) - 1}].metrics.kubelet_cpu_manager_pinning_requests_total: 8 instead of 7"
    )
