"""Every decision of the reference, in every field: `default` in full, of the others a quarter per ordinary run."""

import json

import pytest

from decision_vectors import FILES, QUARTERS, difference, quarter_of_commit, vectors
from nodeagent.formats.scenario import scenario_from_text
from nodeagent.formats.scenario_replay import replay

COUNTS = {
    "default": 250,
    "options": 450,
    "topology": 300,
    "memory": 249,
    "podlevel": 396,
    "restart": 220,
    "start": 291,
    "all": 398,
}


@pytest.mark.parametrize("name", FILES)
def test_decides_as_the_reference(name: str, request: pytest.FixtureRequest) -> None:
    everything = name == "default" or request.config.getoption("--all-vectors")
    quarter = quarter_of_commit()
    found, count = [], 0
    for count, vector in enumerate(vectors(name), start=1):
        if not everything and count % QUARTERS != quarter:
            continue
        scenario = scenario_from_text(json.dumps(vector["scenario"]), name)
        # Through JSON, as it is printed: tuples and keys that aren't strings would otherwise pass.
        result = json.loads(json.dumps(replay(scenario)))
        place = difference(vector["expected"], result)
        if place:
            found.append(f"{scenario.id}{place[:400]}")
    assert count == COUNTS[name]
    assert not found, f"{len(found)} differ, the first are\n" + "\n".join(found[:5])


def test_a_difference_is_seen() -> None:
    vector = next(vectors("default"))
    result = json.loads(json.dumps(replay(scenario_from_text(json.dumps(vector["scenario"]), "default"))))
    assert difference(vector["expected"], result) is None
    result["steps"][-1]["metrics"]["kubelet_cpu_manager_pinning_requests_total"] += 1
    assert difference(vector["expected"], result) == (
        f".steps[{len(result['steps']) - 1}].metrics.kubelet_cpu_manager_pinning_requests_total: 8 instead of 7"
    )
