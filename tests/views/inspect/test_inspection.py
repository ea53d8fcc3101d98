"""What inspect says about built nodes: the document's facts, and the texts to the letter."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, build, initial
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.config import Config, Errata, Placement, ReservedMemory
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.host_processes import HostInterrupt, HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, RestartPolicy
from nodeagent.core.model.promises import NOTHING, UnrecoveredPod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import ProcessSettings
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.reservation import ReservedRoom
from nodeagent.core.model.state import ContainerStatus, Phase
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, exclusive_cpus, own_set_of, with_default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.node_view import ViewReader, view_document
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.inspect.document import NodeVerdict, has_difference, inspect_node
from nodeagent.views.inspect.text import add_colours, format_health, render, render_in_full, render_wide
from nodeagent.views.simulate.pods_text import format_remaining
from nodeagent.views.topology.cpu_owners import label_cpus
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.cpu_places import Places
from nodeagent.views.wording.refusal_advice import advise_next_step
from nodeagent.views.wording.words import (
    format_age,
    format_bytes,
    format_exit,
    format_missing_bytes,
    format_places,
    format_quota,
    format_readable_bytes,
    format_readable_share,
    format_requested_bytes,
    format_state,
)
from tests.support import json_schema
from tests.support.inspected_nodes import NOW_MS, World, changed, ended, everything, idle, machine, running
from tests.support.pods import amounts, app, exclusive, pod

GOLDEN = Path(__file__).parents[2] / "golden"


def container_of(document, name="app"):
    return next(c for p in document["pods"] for c in p["containers"] if c["name"] == name)


def one(*containers, statuses=(), topology=None, placement=None, **more):
    return World(topology, placement).add(pod("web", *containers), *statuses, **more)


RESERVED = (
    ReservedRoom("nightly", 1000, "8", "4Gi", NOW_MS - 600_000, NOW_MS + 3_000_000, ("jobs/build", "jobs/waits")),
    ReservedRoom("tomorrow", 1001, "2", None, NOW_MS + 7_200_000, NOW_MS + 10_800_000, ("jobs/early",)),
    ReservedRoom("unused", 1001, "1", None, NOW_MS + 72_000_000, NOW_MS + 79_200_000),
)


def documents():
    _, _, view = everything()
    starved = World(placement=Placement("static", (("strict-cpu-reservation", "true"),), CpuSet.of(0)))
    starved.add(pod("greedy", app("app", cpu="7", memory="64Mi"))).add(pod("poor", app("app")))
    down = World(machine("3")).add(pod("web", app("app", cpu="2", memory="64Mi")))
    return {
        "idle": render(inspect_node(idle().view())),
        "everything": render(inspect_node(view)),
        "one-pod": render_in_full(inspect_node(view, frozenset({"uid-web"}))),
        "refused-pod": render_in_full(inspect_node(view, frozenset({"uid-too-big"}))),
        "wide": render_wide(inspect_node(view)),
        "starved": render(inspect_node(starved.view())),
        "reservations": render(
            inspect_node(replace(idle().view(), reservations=RESERVED)),
            format_time=lambda at_ms: f"{at_ms % 3_600_000}",
        ),
        "agent-down": render(
            inspect_node(down.view(cgroups=None, is_live=False, is_ready=False, pids=None, cgroup_root=None))
        ),
    }


@pytest.mark.parametrize(
    "name", ["idle", "everything", "one-pod", "refused-pod", "wide", "starved", "reservations", "agent-down"]
)
def test_text_is_as_agreed_on(name):
    golden = GOLDEN / f"inspect-{name}.txt"
    assert documents()[name] == golden.read_text(), f"if the new text is better, put it into {golden}"


SETTINGS = {"aslr": False, "scheduler": "fifo:10"}


def test_settings_of_a_process_are_shown_and_it_is_said_who_has_none_of_them():
    asked = ProcessSettings(aslr=False, scheduler="fifo:10")
    containers = (app("own", cpu="2"), app("shares", cpu="500m"), app("entered", cpu="1", command=()))
    document = inspect_node(World().add(pod("web", *containers, process=asked)).view())
    json_schema.check(document, "inspection")
    settings = {name: container_of(document, name)["settings"] for name in ("own", "shares", "entered")}
    assert settings == {"own": SETTINGS, "shares": SETTINGS, "entered": {}}
    text = render_in_full(document)
    assert "settings   aslr=false, scheduler=fifo:10\n" in text
    notes = {name: " ".join(container_of(document, name)["notes"]) for name in settings}
    assert "scheduling policy" not in notes["own"]
    assert "without the scheduling policy fifo:10, which only containers with CPUs of their own have" in notes["shares"]
    assert "no settings of the process: only processes that the agent starts have them" in notes["entered"]


def test_reservations_pass_through_the_local_api_and_are_as_the_schema_says():
    view = replace(idle().view(), reservations=RESERVED)
    read = ViewReader()(JsonValue(json.loads(json.dumps(view_document(view)))))
    assert read.reservations == RESERVED
    document = inspect_node(read)
    assert json.loads(json.dumps(document)) == document
    json_schema.check(document, "inspection")
    assert [one["jobs"] for one in document["node"]["reservations"]] == [
        ["jobs/build", "jobs/waits"],
        ["jobs/early"],
        [],
    ]
    assert inspect_node(replace(view, reservations=None))["node"]["reservations"] is None


def test_no_line_is_wider_than_a_terminal_and_none_needs_colour():
    for name, text in documents().items():
        if name != "wide":
            assert max(map(len, text.splitlines())) <= 80, name
        assert "\x1b" not in text


def long_names(count, cpus_text):
    topology = machine()
    world = World(topology)
    for number in range(count):
        world.add(pod(f"a-pod-with-quite-a-long-name-{number:03}", app("a-container-with-a-long-name-too")))
    world.state = replace(world.state, promises=with_default_set(world.state.promises, CpuSet.parse(cpus_text)))
    return world


def test_250_pods_fit_the_width_and_end_with_what_matters():
    world = long_names(250, "0-7")
    world.add(pod("bad", app("app")), ended("app", 1, backoff_step=3, attempt=9))
    text = render(inspect_node(world.view()))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 250 * 5 + 30, "even with names that need two lines"
    assert sum(line.startswith("default/a-pod-with-quite-a-long-name-") for line in lines) == 250
    # What matters is at the end, where the terminal stands after a long listing.
    assert "  default/bad app: CrashLoopBackOff, 8 restarts" in lines[-6:]


@pytest.mark.parametrize("cpus", ["0,2,4,6", "0-7"])
@pytest.mark.parametrize("width", [80, 60, 120])
def test_every_width_is_kept(cpus, width):
    world = long_names(3, cpus)
    assert max(map(len, render(inspect_node(world.view()), width).splitlines())) <= width


def test_document_is_plain_and_its_names_are_stable():
    _, _, view = everything()
    document = inspect_node(view)
    assert json.loads(json.dumps(document)) == document
    assert sorted(document) == [
        "atMs", "differences", "hostProcesses", "kind", "node", "orphans", "pods", "summary", "verdict", "version",
    ]  # fmt: skip
    assert sorted(document["node"]) == [
        "agent", "cgroupRoot", "copied", "copiedAt", "coreClasses", "cpus", "devices", "generation", "hostname", "numaNodes", "policies",
        "problems", "recovery", "reservations", "sockets",
    ]  # fmt: skip
    assert sorted(document["pods"][0]) == [
        "cgroup", "containers", "coreClass", "decidedAtMs", "deletingSinceMs", "domain", "effective", "estimates", "idle", "name",
        "namespace", "phase", "podCpus", "preferredCoreClass", "qos", "refusal", "refusedChange", "source", "starved", "uid",
    ]  # fmt: skip
    assert sorted(container_of(document)) == [
        "cgroup", "closedToHost", "coreClasses", "degraded", "devices", "differs", "effective", "exit",
        "hadCPUs", "isolation", "kind", "lastExit",
        "name", "near", "notes", "oomKills", "partition", "pid", "places", "processes", "promised", "restarts", "settings", "starved",
        "state", "unit", "whyShared",
    ]  # fmt: skip
    assert sorted(container_of(document)["effective"]) == [
        "cpus",
        "frozen",
        "memoryMaxBytes",
        "mems",
        "quota",
        "weight",
    ]
    assert sorted(container_of(document)["state"]) == ["killAtMs", "name", "nextStartAtMs", "reason", "startedAtMs"]
    assert sorted(document["differences"][0]) == ["cgroup", "container", "file", "found", "pod", "promised"]


def test_same_sight_same_document():
    assert inspect_node(everything()[2]) == inspect_node(everything()[2])


STATES = {
    "runs": (running("app"), {}, ("Running", None)),
    "waits to be started": (ContainerStatus("app"), {}, ("Waiting", "ContainerCreating")),
    "is being started": (ContainerStatus("app", attempt=1), {}, ("Waiting", "ContainerCreating")),
    "crash loop": (ended("app", 1, backoff_step=3), {}, ("Waiting", "CrashLoopBackOff")),
    "due again": (ended("app", 1), {}, ("Waiting", "Restarting")),
    "is being stopped": (running("app", stop_by_ms=NOW_MS + 1), {"deleting_since_ms": NOW_MS}, ("Running", "Stopping")),
    "finished": (ended("app", 3), {"outcome": Phase.FAILED}, ("Exited", "Error")),
    "ended while deleting": (ended("app", 0), {"deleting_since_ms": NOW_MS}, ("Exited", "Completed")),
    "never ran": (ContainerStatus("app"), {"deleting_since_ms": NOW_MS}, ("Exited", "NeverStarted")),
}


@pytest.mark.parametrize("name", STATES)
def test_state_of_a_container(name):
    status, more, expected = STATES[name]
    world = one(app("app"), statuses=(status,), **more)
    state = container_of(inspect_node(world.view()))["state"]
    assert (state["name"], state["reason"]) == expected


def test_a_finished_pod_shows_the_cpus_that_it_had():
    over = replace(ended("app", 0), had_cpus=CpuSet.of(1, 5))
    document = inspect_node(one(app("app"), statuses=(over,), outcome=Phase.SUCCEEDED).view())
    assert container_of(document)["hadCPUs"] == "1,5"
    assert "had 1,5" in render(document)
    assert "had 1,5" in render_wide(document)
    assert "none: had CPUs 1,5 until its pod finished" in " ".join(render_in_full(document).split())


@pytest.mark.parametrize(("memory", "said"), [(None, "no memory limit"), ("64Mi", "memory 64Mi")])
def test_a_limit_that_is_not_there_is_said_as_that(memory, said):
    document = inspect_node(one(app("app", resources=exclusive(None, memory))).view())
    (line,) = [line for line in render_in_full(document).splitlines() if line.startswith("limits")]
    assert line.endswith(f", {said}")


def test_wide_is_cut_by_two_blanks_whatever_a_message_says():
    world = one(app("app"))
    refused = Waiting("OutOfcpu", "too  little\nof it:\t none", NOW_MS)
    entry = replace(world.state.entries[0], refusal=refused, containers=())
    world.state = replace(world.state, entries=(entry,))
    heading, row = [
        line.split("  ")
        for line in render_wide(inspect_node(world.view())).splitlines()
        if "default/web" in line or "POD" in line
    ]
    heading, row = ([cell.strip() for cell in cells if cell.strip()] for cells in (heading, row))
    assert len(row) == len(heading) == 18
    assert row[-1] == "OutOfcpu: too little of it: none"
    assert set(row[3:-1]) == {"-"}


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("default/refused  Refused, Burstable", ["Refused"]),
        ("  app  CrashLoopBackOff  3", ["CrashLoopBackOff"]),
        ("    degraded: its CPUs 3 are offline", ["degraded"]),
        ("  default/degraded app: degraded, 0 restarts", ["degraded"]),
        ("DIFFERENCES between allocated and actual: 2\n  x", ["DIFFERENCES between allocated and actual: 2"]),
        ("agent  is NOT running: this", ["is NOT running"]),
        ("default/failed-unknown  Running", []),
    ],
)
def test_what_is_wrong_is_coloured_and_no_name_is(text, marked):
    shown = add_colours(text)
    assert re.findall("\x1b\\[1;9[13]m([^\x1b]*)\x1b\\[0m", shown) == marked
    assert re.sub("\x1b\\[[0-9;]*m", "", shown) == text


def test_back_off_says_until_when():
    world = one(app("app"), statuses=(ended("app", 1, backoff_step=3),))
    # 10 s, doubled twice, after an end 30 s ago
    assert container_of(inspect_node(world.view()))["state"]["nextStartAtMs"] == NOW_MS + 10_000


def test_a_started_container_without_processes_has_ended_unseen():
    world = one(app("app"))
    path = "shared/pool/payload/besteffort/poduid-web/app"
    observed = world.observed()
    observed[path] = replace(observed[path], is_populated=False)
    state = container_of(inspect_node(world.view(cgroups=observed)))["state"]
    assert (state["name"], state["reason"]) == ("Exited", "NotYetObserved")


def test_what_waits_for_an_init_container_says_so():
    world = one(
        app("setup", kind=ContainerKind.INIT),
        app("app"),
        statuses=(running("setup"), ContainerStatus("app")),
    )
    assert container_of(inspect_node(world.view()))["state"]["reason"] == "PodInitializing"


def test_a_container_without_a_command_is_open():
    world = one(app("slot", command=()))
    assert container_of(inspect_node(world.view()), "slot")["state"]["name"] == "Open"


WHY = {
    "policy none": (
        app("app", cpu="2", memory="64Mi"),
        {"placement": Placement()},
        "the CPU manager's policy is none",
    ),
    "nothing asked for": (app("app"), {}, "it requests no CPU"),
    "fraction": (app("app", cpu="1500m", memory="64Mi"), {}, "its CPU request is not a whole number"),
    "limit": (
        app("app", resources=ResourceRequirements(amounts("1"), amounts("2"))),
        {},
        "its CPU or memory limit differs from its request",
    ),
}


@pytest.mark.parametrize("name", WHY)
def test_says_why_a_container_is_not_exclusive(name):
    spec, more, expected = WHY[name]
    found = container_of(inspect_node(one(spec, **more).view()))
    assert (found["isolation"], found["whyShared"], found["promised"]["cpus"]) == ("host", expected, None)


def test_policy_none_starves_nobody():
    world = one(app("app"), placement=Placement())
    document = inspect_node(world.view())
    found = container_of(document)
    assert (found["starved"], found["effective"]["cpus"]) == (False, "0-7")
    assert document["node"]["cpus"]["shared"] == "0-7"
    assert document["node"]["cpus"]["availableCount"] == 0


def test_exclusive_cpus_say_where_they_lie():
    found = container_of(inspect_node(one(app("app", cpu="3", memory="64Mi")).view()))
    assert (found["isolation"], found["whyShared"]) == ("container", None)
    assert found["promised"]["cpus"] == found["effective"]["cpus"]
    assert sum(len(CpuSet.parse(place["cpus"])) for place in found["places"]) == 3
    assert set(found["places"][0]) == {"cores", "cpus", "l3", "numa", "socket", "uncore", "wholeCores"}


@pytest.mark.parametrize(
    ("offline", "usable", "note"),
    [
        ("5", "1", "degraded: its CPUs 5 are offline"),
        ("1,5", "0,2-4,6-7", "degraded: its CPUs 1,5 are offline; it runs in the shared pool until they return"),
    ],
)
def test_offline_cpus_degrade(offline, usable, note):
    before = one(app("app", cpu="2", memory="64Mi"))
    world = World(machine(offline))
    world.state = before.state
    document = inspect_node(world.view())
    found = container_of(document)
    assert (found["degraded"], found["notes"], found["effective"]["cpus"]) == (True, [note], usable)
    assert not has_difference(document)


def test_who_has_no_cpu_left_lies_nowhere():
    """Frozen, though the kernel gives the cgroup its parent's CPUs."""
    strict = Placement("static", (("strict-cpu-reservation", "true"),), CpuSet.of(0, 4))
    before = one(app("app", cpu="2", memory="64Mi"), placement=strict)
    before.add(pod("greedy", app("app", cpu="4", memory="64Mi")))
    lost = own_set_of(before.state.promises, before.state.entries[0].pod.uid, "app")
    world = World(machine(str(lost)), placement=strict)
    world.state = before.state
    found = container_of(inspect_node(world.view()))
    assert (found["starved"], found["state"]["reason"], found["places"]) == (True, "Starved", [])
    assert found["notes"] == [
        f"degraded: its CPUs {lost} are offline",
        "starved: no CPU is left for it, so it is frozen until the shared pool has a CPU",
    ]


RECOVERY = {
    "problems": [
        "cannot use /var/lib/nodeagent/nodeagent_state: the checksum does not match: the file is truncated or damaged"
    ],
    "setAside": ["/var/lib/nodeagent/nodeagent_state.aside-1"],
    "adopted": ["default/web"],
    "differences": [
        {
            "pod": "default/web",
            "container": "app",
            "resource": "CPUs",
            "before": "1,5",
            "after": "5",
            "why": "CPUs 1 are reserved",
        }
    ],
    "refused": [{"pod": "default/batch", "message": "not enough CPUs"}],
}


@pytest.mark.parametrize(("isolated", "reported"), [("1-3,5-7", True), ("1,2", False), ("", False)])
def test_who_has_several_cpus_that_the_kernel_spreads_no_load_over_is_reported(isolated: str, reported: bool) -> None:
    """Two processes of a pod ran on one of its CPUs while the other idled, and nothing said so."""
    world = World(replace(machine(), isolated=CpuSet.parse(isolated)))
    world.add(pod("web", app("app", cpu="2", memory="64Mi")))
    notes = container_of(inspect_node(world.view()))["notes"]
    assert [note for note in notes if "spreads no load" in note] == [
        "CPUs 1,5 are isolated (isolcpus): the kernel spreads no load over them, so pin each process or thread to its own CPU (taskset -c)"
    ] * reported


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("problems", lambda: idle().view(problems=("bad.yaml:1: x",))),
        ("refused", lambda: one(app("app", cpu="8", memory="64Mi")).view()),
        ("crashLoops", lambda: one(app("app"), statuses=(ended("app", 1, attempt=4, backoff_step=3),)).view()),
        ("degraded", lambda: one(app("app", cpu="2", memory="64Mi")).view()),
    ],
)
def test_what_needs_a_person_is_counted(name, made):
    view = made()
    if name == "degraded":
        view = replace(
            view, node=replace(view.node, topology=view.node.topology.without(exclusive_cpus(view.state.promises)))
        )
    document = inspect_node(view)
    assert document["summary"][name] == 1
    assert document["verdict"] == NodeVerdict.WRONG
    assert format_health(document).startswith("NOT healthy: ")


def test_a_node_where_all_is_well_is_healthy():
    world = one(app("app", cpu="2", memory="64Mi"))
    world.add(pod("job", app("once"), restart_policy=RestartPolicy.NEVER), ended("once", 1), outcome=Phase.FAILED)
    document = inspect_node(world.view())
    assert document["verdict"] == NodeVerdict.HEALTHY, "a job that has failed is its owner's matter"
    assert format_health(document) == "healthy"


def test_a_recovery_is_reported_until_the_agent_starts_again():
    text = render(inspect_node(idle().view(recovery=RECOVERY)))
    for words in (
        "RECOVERED",
        "the checksum does not match",
        "nodeagent_state.aside-1",
        "default/web app: CPUs 1,5, now 5",
        "refused",
    ):
        assert words in text
    assert "no allocation of a running pod has changed" not in text
    unchanged = {**RECOVERY, "differences": [], "refused": []}
    assert "  no allocation of a running pod has changed\n" in render(inspect_node(idle().view(recovery=unchanged)))
    assert "RECOVERED" not in render(inspect_node(idle().view()))


def test_who_got_fewer_cpus_than_it_asks_for_is_degraded():
    world = one(app("app", cpu="2", memory="64Mi"))
    uid = world.state.entries[0].pod.uid
    promises = world.state.promises
    kept = promises.of_pod(uid).having(replace(promises.of_pod(uid).of(CpuHoldings), cpus=(("app", CpuSet.of(1)),)))
    promises = with_default_set(
        replace(promises, pods=promises.pods.put(uid, kept)), default_set(promises) | CpuSet.of(5)
    )
    world.state = replace(world.state, promises=promises)
    found = container_of(inspect_node(world.view()))
    assert found["degraded"]
    [note] = found["notes"]
    assert note.startswith("degraded: it lost 1 of its CPUs in a recovery of the state")


# Differences


def drifted(path, change):
    world = one(app("app", cpu="2", memory="64Mi"))
    observed = world.observed()
    if change is None:
        del observed[path]
    else:
        observed[path] = change(observed[path])
    return inspect_node(world.view(cgroups=observed))


APP = "poduid-web/app"
DRIFTS = {
    "cpuset": (
        APP,
        lambda s: changed(s, Attribute.CPUSET_CPUS, CpuSet.of(1, 2), cpus_effective=CpuSet.of(1, 2)),
        ("cpuset.cpus", "1,5", "1-2"),
    ),
    "moved off its CPUs altogether": (
        APP,
        lambda s: changed(s, Attribute.CPUSET_CPUS, CpuSet.of(2, 3), cpus_effective=CpuSet.of(2, 3)),
        ("cpuset.cpus", "1,5", "2-3"),
    ),
    "emptied cpuset": (
        APP,
        lambda s: changed(s, Attribute.CPUSET_CPUS, CpuSet(), cpus_effective=CpuSet.parse("0-7")),
        ("cpuset.cpus", "1,5", ""),
    ),
    "a cgroup above grants less": (
        APP,
        lambda s: replace(s, cpus_effective=CpuSet.of(1)),
        ("cpuset.cpus.effective", "1,5", "1"),
    ),
    "a cgroup above grants something else": (
        APP,
        lambda s: replace(s, cpus_effective=CpuSet.of(2, 3)),
        ("cpuset.cpus.effective", "1,5", "2-3"),
    ),
    "mems": (APP, lambda s: changed(s, Attribute.CPUSET_MEMS, NumaSet.of(0)), ("cpuset.mems", "0-1", "0")),
    "mems granted": (APP, lambda s: replace(s, mems_effective=NumaSet.of(0)), ("cpuset.mems.effective", "0-1", "0")),
    "frozen": (
        APP,
        lambda s: changed(s, Attribute.FREEZE, value=True, is_frozen=True),
        ("cgroup.freeze", "0", "1"),
    ),
    "frozen from above": (
        APP,
        lambda s: replace(s, is_frozen=True),
        ("cgroup.events", "frozen 0", "frozen 1: a parent cgroup is frozen"),
    ),
    "no controller": (
        APP,
        lambda s: replace(s, attributes=tuple(a for a in s.attributes if a[0] is not Attribute.CPU_WEIGHT)),
        ("cpu.weight", "174", None),
    ),
    "pod's controllers": (
        "poduid-web",
        lambda s: replace(s, subtree_control=s.subtree_control - {"memory"}),
        ("cgroup.subtree_control", "memory", "without them"),
    ),
}


@pytest.mark.parametrize("name", DRIFTS)
def test_every_difference_is_named_once_and_exactly(name):
    path, change, expected = DRIFTS[name]
    document = drifted(path, change)
    assert [(d["file"], d["promised"], d["found"]) for d in document["differences"]] == [expected]
    found = document["differences"][0]
    assert (found["cgroup"], found["pod"], found["container"]) == (
        path,
        "default/web",
        "app" if path == APP else None,
    )
    assert has_difference(document)
    assert container_of(document)["differs"] == (path == APP)


def test_a_missing_cgroup_is_one_difference_not_one_per_file():
    document = drifted(APP, None)
    assert [(d["file"], d["promised"], d["found"]) for d in document["differences"]] == [(None, "a cgroup", "none")]
    assert container_of(document)["effective"] is None


def test_what_is_as_promised_differs_in_nothing():
    world, _, _ = everything()
    document = inspect_node(world.view())
    assert document["differences"] == []
    assert not has_difference(document)


def test_unknown_cgroups_are_not_taken_for_missing_ones():
    document = inspect_node(idle().view(cgroups=None))
    assert document["differences"] is None
    assert not has_difference(document)
    assert "nothing was compared" in render(document)


@pytest.mark.parametrize(
    ("more", "state", "phase"),
    [
        ({"pids": None}, "Unknown", "Unknown"),
        ({"pids": {}}, "Exited, not yet seen", "Running"),
        ({}, "Running", "Running"),
    ],
    ids=["nobody can be asked", "the launcher has no such process", "the launcher has it"],
)
def test_a_container_runs_only_if_somebody_says_so(more, state, phase):
    document = inspect_node(one(app("app")).view(cgroups=None, **more))
    [shown] = document["pods"]
    assert (format_state(container_of(document), NOW_MS), shown["phase"]) == (state, phase)
    assert document["summary"]["byPhase"] == {phase: 1}


def test_a_start_that_was_never_confirmed_is_no_unknown_run():
    world = one(app("app"), statuses=[ContainerStatus("app", attempt=1)])
    document = inspect_node(world.view(cgroups=None, pids=None))
    assert container_of(document)["state"]["name"] == "Waiting"


def test_processes_that_could_not_be_counted_are_not_none():
    world = one(app("slot", command=()))
    slot = "shared/pool/payload/besteffort/poduid-web/slot"
    known = inspect_node(world.view())
    unread = inspect_node(world.view(process_counts={}))
    unseen = inspect_node(world.view(cgroups=None))
    missing = inspect_node(world.view(cgroups={k: v for k, v in world.observed().items() if k != slot}))
    shown = [format_state(container_of(d, "slot"), NOW_MS) for d in (known, unread, unseen, missing)]
    assert shown == ["Open, empty", "Open, processes unknown", "Open, processes unknown", "Open, empty"]
    assert [container_of(d, "slot")["processes"] for d in (known, unread, unseen, missing)] == [0, None, None, 0]
    assert "process    unknown\n" in render_in_full(unread)


def test_an_empty_leftover_is_a_difference_and_a_populated_one_a_stranger():
    world = idle()
    observed = world.observed()
    left = replace(observed["burstable"], path="podgone", is_populated=False)
    document = inspect_node(world.view(cgroups={**observed, "podgone": left}))
    assert [d["promised"] for d in document["differences"]] == ["no cgroup"]
    document = inspect_node(world.view(cgroups={**observed, "podgone": replace(left, is_populated=True)}))
    assert [s["cgroup"] for s in document["orphans"]] == ["podgone"]
    assert has_difference(document)
    assert "podgone may run on CPUs 0-7; to end them:" in render_in_full(document)
    anywhere = replace(left, is_populated=True, cpus_effective=None)
    document = inspect_node(world.view(cgroups={**observed, "podgone": anywhere}))
    assert "podgone has processes; to end them:" in render_in_full(document)


def test_what_an_orphan_has_by_records_is_said():
    world = idle()
    observed = world.observed()
    left = replace(observed["burstable"], path="podgone", is_populated=True)
    card = HeldDevice("example.com/nic", "0000:3b:00.0")
    lost = (
        UnrecoveredPod("gone", NOTHING.having(DeviceHoldings(devices=(("app", (card,)),)))),
        UnrecoveredPod(
            "other", NOTHING.having(DeviceHoldings(devices=(("app", (replace(card, id="0000:3c:00.0"),)),)))
        ),
    )
    view = world.view(cgroups={**observed, "podgone": left})
    document = inspect_node(
        replace(view, state=replace(view.state, promises=replace(view.state.promises, unrecovered=lost)))
    )
    json_schema.check(document, "inspection")
    assert [s["devices"] for s in document["orphans"]] == [["0000:3b:00.0"]]
    assert "podgone may run on CPUs 0-7 and has 0000:3b:00.0; to end them:" in render_in_full(document)


def test_one_pod_shows_its_own_differences_only():
    _, _, view = everything()
    document = inspect_node(view, frozenset({"uid-idle"}))
    assert [p["name"] for p in document["pods"]] == ["idle"]
    assert (document["differences"], document["orphans"]) == ([], [])
    assert not has_difference(document)


# Words


@pytest.mark.parametrize(
    "reason", [*(r.value for r in Reason), "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfhugepages-2Mi", "New"]
)
def test_every_refusal_has_a_next_step_that_can_be_typed(reason):
    text = advise_next_step(reason, "default/web")
    assert text.endswith("then: nodeagent retry default/web")
    assert len(text) > len("; then: nodeagent retry default/web")


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ("1,5", "socket 0, NUMA 0, core 1 (whole), L3 0"),
        ("1", "socket 0, NUMA 0, core 1 (in part), L3 0"),
        ("0-1,4-5", "socket 0, NUMA 0, cores 0 1 (whole), L3 0"),
        ("1-2,5-6", "socket 0, NUMA 0, core 1 (whole), L3 0; socket 1, NUMA 1, core 2 (whole), L3 1"),
        ("", ""),
    ],
)
def test_places_in_words(cpus, text):
    assert format_places(Places(machine()).find(CpuSet.parse(cpus))) == text


def test_owners_of_cpus():
    world, _, _ = everything()
    found = label_cpus(world.managers, world.state.promises, world.state.holding_pods())
    assert found[0] == "reserved"
    assert found[1] == "default/web setup, app"
    assert found[4] == "default/slot slot"
    assert found[3] == "shared"


def test_host_processes_are_shown_up_to_a_bound():
    processes = tuple(HostProcess(pid, f"p{pid}", CpuSet.of(1)) for pid in range(100, 140))
    document = inspect_node(idle().view(host=HostProcesses(processes, 1, CpuSet.of(1), 2)))
    text = render(document)
    assert len(document["hostProcesses"]["processes"]) == 40
    assert "p111 (111), 28 more, 1 kernel thread, 2 processes that only root may" in " ".join(text.split())
    assert not has_difference(document)


@pytest.mark.parametrize(
    ("bound", "movable", "said"),
    [
        (0, 0, None),
        (0, 2, "2 that other CPUs may be able to handle"),
        (1, 0, "bound by the kernel: nvme0 (CPU 1)"),
        (14, 1, "1 that other CPUs may be able to handle; bound by the kernel: nvme0 (CPU 1), nvme1 (CPU 1),"),
    ],
)
def test_interrupts_that_may_come_to_exclusive_cpus_are_shown(bound, movable, said):
    found = [HostInterrupt(n, f"nvme{n}", CpuSet.of(1), is_bound=n < bound) for n in range(bound + movable)]
    text = render(inspect_node(idle().view(host=HostProcesses(interrupts=tuple(found)))))
    assert ("INTERRUPTS that exclusive CPUs may get" in text) is (said is not None)
    assert (said or "") in " ".join(text.split())
    assert ("2 more" in text) is (bound > 12)
    assert "HOST PROCESSES" not in text


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0 s"), (59_999, "59 s"), (60_000, "1 min"), (3_725_000, "1 h 2 min"), (90_000_000, "1 d 1 h"), (-5, "0 s")],
)
def test_time_spans(span_ms, text):
    assert format_age(span_ms) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "no limit"),
        (0, "0"),
        (1536 * 2**20, "1536Mi"),
        (2**30, "1Gi"),
        (1000, "1000"),
        (10**18, "1E"),
        (3 * 10**9, "3G"),
        (2**62, "4Ei"),
        (16_384_001 * 2**10, "16384001Ki"),
    ],
)
def test_amounts_of_bytes(amount, text):
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0.1Gi", "0.1Gi (107374182.4 bytes)"),
        ("1.0005Ki", "1024.512 bytes"),
        ("1500m", "1.5 bytes"),
        ("100n", "0.0000001 bytes"),
        ("1Gi", "1Gi"),
        ("1E", "1E"),
        ("2000m", "2"),
    ],
)
def test_an_amount_with_a_part_of_a_byte_has_the_unit_that_people_write(amount: str, text: str) -> None:
    assert format_requested_bytes(Quantity.parse(amount)) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (1000, "1000"),
        (3 * 2**10, "3.0Ki"),
        (5 * 2**20, "5Mi"),
        (16_318_840 * 2**10, "15.5Gi"),
        (2**30 - 1, "1023.9Mi"),
        (10**18, "888.1Pi"),
    ],
)
def test_an_amount_that_the_kernel_counts_is_rounded_down_in_tables(amount: int, text: str) -> None:
    assert format_readable_bytes(amount) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (64_412 * 2**20, 63 * 2**30, "64412Mi of 64512Mi"),
        (6 * 2**30, 8 * 2**30, "6Gi of 8Gi"),
        (0, 2**30, "0 of 1Gi"),
        (2**30, 16_318_840 * 2**10, "1Gi of 15.5Gi"),
        (100 * 2**20, 16_318_840 * 2**10, "100Mi of 15936.3Mi"),
        (0, 2**30 - 1, "0 of 1023.9Mi"),
    ],
)
def test_what_is_free_of_an_amount_has_the_same_unit_as_the_amount(part: int, whole: int, text: str) -> None:
    assert format_readable_share(part, whole) == text


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (2_796_518_348 * 2**10, "2.7Ti"),
        (1124 * 2**20, "1124Mi"),
        (4 * 2**10, "4Ki"),
        (1, "1"),
        (123_456 * 2**20, "120.6Gi"),
        (10**18 + 1, "888.2Pi"),
    ],
)
def test_a_missing_amount_of_many_digits_is_rounded_up(missing: int, text: str) -> None:
    assert format_missing_bytes(missing) == text


def test_sizes_of_huge_pages_that_no_node_has_are_no_column() -> None:
    free = {
        "memory": {"free": 2**30, "allocatable": 16_318_840 * 2**10},
        "hugepages-1Gi": {"free": 0, "allocatable": 0},
    }
    cpus = {
        "node": 0,
        "cpus": "0-1",
        "freeCount": 2,
        "wholeCores": 1,
        "splitCpus": "",
        "fragmentationPercent": 0,
        "caches": 0,
    }
    summary = {"freeCpus": 2, "largestFreeNode": 2}
    lines = list(format_remaining({"nodes": [{**cpus, "memory": free}], "summary": summary}, 80))
    assert "1Gi of 15.5Gi" in lines[2]
    assert "HUGEPAGES" not in lines[1]


def test_quotas():
    assert format_quota(None) == "-"
    assert format_quota({"limitMillicores": None}) == "none"
    assert format_quota({"limitMillicores": 1500}) == "1500m"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"code": 137}, "1 s ago: Error, exit code 137"),
        ({"signal": 9}, "1 s ago: Error, signal 9 (SIGKILL)"),
        ({"signal": 64}, "1 s ago: Error, signal 64"),
        ({"startError": "exec: no such file"}, "1 s ago: Error: exec: no such file"),
        ({}, "1 s ago: Error, exit status unknown"),
    ],
)
def test_ends_of_processes(more, text):
    ending = {"code": None, "signal": None, "startError": None, "reason": "Error", "finishedAtMs": 0}
    assert format_exit(ending | more, 1000) == text


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("0-3,8-11,16-19", 8, ["0-3,", "8-11,", "16-19"]),
        ("one two", 20, ["one two"]),
        ("abcdefghijkl", 5, ["abcde", "fghij", "kl"]),
        ("    note of some words", 16, ["    note of some", "      words"]),
    ],
)
def test_long_texts_are_broken_and_nothing_is_lost(text, width, lines):
    found = break_text(text, width)
    assert [line.strip() for line in found] == [line.strip() for line in lines]
    assert "".join("".join(found).split()) == "".join(text.split())
    assert max(map(len, found)) <= width


def test_a_table_is_as_narrow_as_asked():
    rows = [("a" * 30, "b" * 30, "c"), ("x", "y", "z")]
    assert max(map(len, format_table(rows, 40))) <= 40
    assert format_table(rows, None)[0] == f"{'a' * 30}  {'b' * 30}  c"


def test_configuration_survives_the_way_to_its_readers():
    given = Config(
        placement=Placement(
            cpu_manager_policy="static",
            cpu_manager_policy_options=(("full-pcpus-only", "true"),),
            reserved_system_cpus=CpuSet.parse("0,4"),
            reserved_cpu_milli=2000,
            topology_manager_policy="restricted",
            topology_manager_scope="pod",
            topology_manager_policy_options=(("prefer-closest-numa-nodes", "true"),),
            memory_manager_policy="Static",
            reserved_memory=(ReservedMemory(1, amounts(memory="1Gi")),),
            feature_gates=(("PodLevelResourceManagers", True),),
            errata=Errata.FIXED,
        ),
        cpu_cfs_quota=False,
        cpu_cfs_quota_period_us=50_000,
        swap_behavior="UnlimitedSwap",
        check_allocatable=False,
        max_pods=7,
        pods_per_core=3,
        system_reserved=amounts("500m", "1Gi"),
        kube_reserved=amounts(memory="1536Mi"),
        eviction_memory_bytes=None,
        eviction_memory_percent="5",
        cpu_manager_reconcile_period_ms=3_000,
    )
    assert config_from_document(JsonValue(json.loads(json.dumps(config_document(given))), "config")) == given
    assert config_from_document(JsonValue(config_document(Config()), "config")) == Config()


@pytest.mark.parametrize("name", config_document(Config()))
@pytest.mark.parametrize("other", [["a"], 1.5, {"x": ["a"]}])
def test_a_configuration_of_another_shape_is_refused_by_field(name: str, other: object) -> None:
    """A capture comes from anywhere: what isn't of the right kind must get no further."""
    with pytest.raises(MisfitError, match=rf"^config\.{name}"):
        config_from_document(JsonValue({**config_document(Config()), name: other}, "config"))


@pytest.mark.parametrize("text", ["", ".", "1.", "x", "nan", "-1", "1e3", "٣", "9" * 19])
def test_a_threshold_that_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(MisfitError, match="evictionMemoryPercent: must be a percentage"):
        config_from_document(JsonValue({**config_document(Config()), "evictionMemoryPercent": text}, "config"))


def test_restart_policy_never_leaves_nothing_to_wait_for():
    world = World().add(pod("job", app("app"), restart_policy=RestartPolicy.NEVER), ended("app", 2))
    state = container_of(inspect_node(world.view()))["state"]
    assert (state["name"], state["nextStartAtMs"]) == ("Exited", None)


def test_a_pod_alone_is_shown_as_among_all_others():
    _, _, view = everything()
    among = inspect_node(view)
    assert among["differences"]
    for shown in among["pods"]:
        alone = inspect_node(view, frozenset({shown["uid"]}))
        name = f"{shown['namespace']}/{shown['name']}"
        assert alone["pods"] == [shown]
        assert alone["differences"] == [one for one in among["differences"] if one["pod"] == name]
        assert alone["node"] == among["node"]


@pytest.mark.parametrize("used", [0, 4000])
@pytest.mark.parametrize(("requested", "waits"), [(7000, True), (8000, False)])
def test_what_an_empty_node_has_not_is_not_told_to_wait_for_other_pods(requested: int, used: int, waits: bool) -> None:
    text = advise_next_step(
        "OutOfcpu",
        "default/p",
        f"Node didn't have enough resource: cpu, requested: {requested}, used: {used}, capacity: 7000",
    )
    assert ("end a pod" in text, "request less cpu" in text) == (waits, True)


def test_cpus_that_whole_cores_never_have_are_not_told_to_wait_for_other_pods() -> None:
    """With whole cores of two, 3 CPUs are refused however many are free, and 2 or 4 are not."""
    node = build(topology_from_spec("1s.4c.2t"), Placement("static", (("full-pcpus-only", "true"),), CpuSet.of(0, 4)))
    assert isinstance(node, Managers)
    empty = WhatIf.of(node, initial(node))
    three, four, eight = (empty.judge(pod("p", app("c", count))) for count in ("3", "4", "8"))
    assert isinstance(four, Admitted)
    for refused, waits in ((three, False), (eight, True)):
        assert isinstance(refused, Rejected)
        text = advise_next_step(refused.reason, "default/p", refused.message)
        assert ("end a pod that holds some" in text) is waits
        assert ("request a number of CPUs that whole cores have" in text) is not waits
