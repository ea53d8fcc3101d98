"""What is shown of pods that stand for units of systemd's: where these are, whether they run, and what becomes of them."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.exec_preconditions import find_obstacle
from nodeagent.core.cgroups.write_order import diff
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, UnitSettings
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import ContainerStatus
from nodeagent.formats.node_view import NodeView
from nodeagent.views.inspect.differences import Difference, find_differences
from nodeagent.views.inspect.document import has_difference, inspect_node
from nodeagent.views.inspect.text import render_in_full
from nodeagent.views.release_text import describe_plan, find_longest_end_seconds, format_plan
from tests.support import json_schema
from tests.support.inspected_nodes import NOW_MS, World, changed
from tests.support.pods import app, pod, unit

PATH = "units/poduid-db/db.service"
WHERE = "/sys/fs/cgroup/system.slice/db.service"
CGROUPS = {"db.service": "system.slice/db.service"}
SEEN = ContainerStatus("db", unit_before=UnitSettings())
OWN = CpuSet.parse("1,5")


def world(status: ContainerStatus = SEEN, **more: Any) -> World:
    return World().add(pod("db", unit(cpu="2", memory="64Mi")), status, **more)


def there(of: World, **more: Any) -> dict[str, ObservedCgroup]:
    observed = of.observed()
    fields = {"is_populated": True, "unit": UnitSettings(OWN)} | more
    return {**observed, PATH: replace(observed[PATH], **fields)}


def view(of: World, observed: dict[str, ObservedCgroup] | None) -> NodeView:
    return of.view(cgroups=observed, unit_cgroups=CGROUPS)


def shown(of: World, observed: dict[str, ObservedCgroup] | None) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The pod, its container, and the text."""
    document = inspect_node(view(of, observed), frozenset({"uid-db"}))
    json_schema.check(json.loads(json.dumps(document)), "inspection")
    (found,) = document["pods"]
    (container,) = found["containers"]
    return found, container, render_in_full(document)


def test_a_unit_that_is_as_promised() -> None:
    found, container, text = shown(world(), there(world()))
    assert (found["domain"], found["cgroup"]) == ("systemd", None)
    assert (container["unit"], container["cgroup"]) == ("db.service", WHERE)
    assert (container["state"]["name"], container["differs"]) == ("Running", False)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "unit db.service" in lines
    assert "limits from the unit's own settings" in lines
    assert any(line.startswith("state Running") for line in lines)


def test_a_container_of_ours_has_no_unit() -> None:
    found = inspect_node(World().add(pod("a", app(cpu="1"))).view())["pods"][0]
    assert (found["domain"], found["containers"][0]["unit"]) == ("own", None)


@pytest.mark.parametrize(
    ("observed", "state", "reason", "text"),
    [
        pytest.param(
            there(world(), is_populated=False, cpus_effective=None),
            "Waiting",
            "UnitInactive",
            "Unit is not active",
            id="inactive",
        ),
        pytest.param(
            {path: one for path, one in world().observed().items() if path != PATH},
            "Waiting",
            "UnitUnknown",
            "Unit is unknown to systemd",
            id="unknown",
        ),
        pytest.param(there(world(), unit=None), "Unknown", None, "Unknown", id="systemd does not answer"),
        pytest.param(None, "Unknown", None, "Unknown", id="nothing could be read"),
    ],
)
def test_whether_it_runs(observed: dict[str, ObservedCgroup] | None, state: str, reason: str | None, text: str) -> None:
    _, container, page = shown(world(), observed)
    assert (container["state"]["name"], container["state"]["reason"]) == (state, reason)
    assert any(
        line.split(maxsplit=1)[1:] and line.strip().startswith("state") and text in line for line in page.splitlines()
    )


def test_other_cpus_than_promised_are_a_difference_that_names_where_the_unit_is() -> None:
    elsewhere = CpuSet.parse("0-7")
    observed = there(world())
    observed[PATH] = changed(observed[PATH], Attribute.CPUSET_CPUS, elsewhere, cpus_effective=elsewhere)
    document = inspect_node(view(world(), observed))
    assert has_difference(document)
    (found, *_) = document["differences"]
    assert (found["cgroup"], found["container"], found["found"]) == (WHERE, "db", "0-7")


def test_one_that_is_still_to_be_given_back_is_a_difference() -> None:
    before = UnitSettings(CpuSet.parse("0-3"))
    of = world(replace(SEEN, unit_before=before), deleting_since_ms=NOW_MS)
    wanted = of.desired_cgroups()
    observed = of.observed()
    observed[PATH] = replace(observed[PATH], unit=UnitSettings(OWN))
    expected = Difference(PATH, "AllowedCPUs", "0-3", "still the pod's value")
    assert expected in find_differences(diff(wanted, observed), wanted, observed)
    observed[PATH] = replace(observed[PATH], unit=before)
    assert not [each for each in find_differences(diff(wanted, observed), wanted, observed) if each.path == PATH]


def test_nothing_is_run_in_a_unit() -> None:
    of = world()
    (entry,) = of.state.entries
    found = find_obstacle(entry, "db", desired=of.desired_cgroups(), observed=there(of), used_below=())
    assert found is not None
    assert found.why == "container db of pod default/db pins db.service: systemd starts its processes"
    assert "`systemctl cat db.service`" in found.next_step


def test_a_release_plans_to_give_it_back_and_ends_nothing() -> None:
    of = world()
    (entry,) = of.state.entries
    plan = describe_plan(of.state, entry)
    assert (plan["units"], plan["cgroup"], plan["order"]) == (["db.service"], None, [])
    assert format_plan(plan) == [
        "default/db: ends",
        "  db.service keeps running under systemd's own settings: CPUs 1,5 are free again",
    ]
    assert find_longest_end_seconds([entry]) == entry.pod.termination_grace_seconds


def test_a_units_cgroup_is_found_from_the_pods_cgroup_and_by_the_kernels_name() -> None:
    known = view(world(), there(world()))
    assert known.cgroup_of(PATH) == "../../system.slice/db.service"
    assert (known.cgroup_name(PATH), known.shown_cgroup(PATH)) == ("/system.slice/db.service", WHERE)
    own = "poduid-a/app"
    assert (known.cgroup_of(own), known.shown_cgroup(own)) == (own, own)
    assert known.cgroup_name(own) == "/nodeagent.slice/nodeagent-pods.service/poduid-a/app"
    unknown = replace(known, unit_cgroups={})
    assert unknown.shown_cgroup(PATH) == PATH
