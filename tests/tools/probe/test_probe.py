"""Where memory is, and how long threads were held up: the document, and what of it people see."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.commands.probe import ProbeError, find_exit_status
from nodeagent.cli.support.exit_status import EXIT_WRONG
from nodeagent.core.model.config import Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.syntax.json_values import MisfitError
from nodeagent.tools.probe.document import (
    ContainerMemory,
    Latency,
    ProbedCpus,
    describe_probe,
    find_container_memory,
    read_latency,
)
from nodeagent.tools.probe.latency import Delays
from nodeagent.tools.probe.text import render_latency, render_memory
from tests.support import json_schema
from tests.support.described_nodes import golden
from tests.support.inspected_nodes import World
from tests.support.pods import amounts, app, pod

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "latency-test.md"
MIB = 2**20
SLOT = ProbedCpus(CpuSet.of(2, 3), "default/slot", "app")
QUIET = Latency(
    SLOT,
    1_700_000_000_000,
    2,
    {2: Delays(9, ((1, 1_000_000), (9, 3))), 3: Delays(35, ((1, 1_000_000), (12, 4), (35, 1)))},
    {2: Delays(14, ((3, 1_900), (14, 100))), 3: Delays(18, ((3, 1_999), (18, 1)))},
)
NOISY = Latency(
    SLOT,
    1_600_000_000_000,
    2,
    {2: Delays(8_150, ((1, 900_000), (400, 70), (1024, 9))), 3: Delays(24_020, ((1, 500_000), (1024, 250)))},
    {2: Delays(3_300, ((50, 1_990), (3_300, 10))), 3: Delays(23_000, ((50, 1_200), (4_000, 790)), 10)},
)


def world() -> World:
    """`web` has memory of NUMA node 0 promised, `job` none."""
    placement = Placement(
        "static",
        reserved_system_cpus=CpuSet.of(0),
        topology_manager_policy="single-numa-node",
        memory_manager_policy="Static",
        reserved_memory=(ReservedMemory(1, amounts(memory="1Gi")),),
        memory_reservation=amounts(memory="1Gi"),
    )
    found = World(placement=placement)
    found.add(pod("web", app("app", cpu="2", memory="1Gi")))
    found.add(pod("job", app("task"), app("late")))
    return found


def memory(**by_node: dict[int, int] | None) -> tuple[ContainerMemory, ...]:
    paths = {"app": "poduid-web/app", "task": "shared/pool/payload/besteffort/poduid-job/task"}
    return find_container_memory(world().view(), None, None, {paths[name]: found for name, found in by_node.items()})


def documented(*found: Any, **more: Any) -> dict[str, Any]:
    document = describe_probe(*found, **more)
    json_schema.check(document, "probe")
    return document


def test_memory_where_it_was_promised_is_as_it_should_be() -> None:
    found = memory(app={0: 4 * MIB, 1: 0}, task={0: 0, 1: 8192})
    assert find_exit_status(found) == 0
    document = documented(found)
    assert [(one["pod"], one["container"], one["promised"], one["elsewhereBytes"]) for one in document["memory"]] == [
        ("default/web", "app", "0", 0),
        ("default/job", "task", None, 0),
    ]


def test_a_page_elsewhere_is_a_difference_and_never_rounded_away() -> None:
    found = memory(app={0: 4096 * MIB, 1: 4096})
    assert find_exit_status(found) == EXIT_WRONG
    assert documented(found)["memory"][0]["elsewhereBytes"] == 4096
    assert render_memory(found, None).splitlines()[1].endswith("0: 4.0GiB, 1: 4.0KiB  99.9%  4.0KiB")


def test_where_promised_memory_is_must_be_known() -> None:
    found = memory(app=None, task=None)
    with pytest.raises(ProbeError, match="default/web app"):
        find_exit_status(found)
    assert documented(found)["memory"][0]["nodes"] is None
    assert find_exit_status(found[1:]) == 0, "nothing was promised"


def test_only_the_named_pods_and_containers_that_have_a_cgroup() -> None:
    by_path = {
        "poduid-web/app": {0: 1},
        "shared/pool/payload/besteffort/poduid-job/task": {0: 1},
        "shared/pool/payload/besteffort/poduid-job/late": {0: 1},
    }
    view = world().view()
    assert [one.container for one in find_container_memory(view, frozenset({"uid-job"}), None, by_path)] == [
        "task",
        "late",
    ]
    assert [one.container for one in find_container_memory(view, None, "late", by_path)] == ["late"]
    assert render_memory(()) == "No container runs.\n"


def test_what_people_see() -> None:
    found = memory(app={0: 3 * 2**30, 1: 12 * MIB}, task=None)
    shown = [render_memory(found), render_latency(QUIET), render_latency(QUIET, NOISY)]
    golden("probe.txt", "\n".join(shown))
    assert all(len(line) <= 80 for text in shown for line in text.splitlines())
    assert shown[-1] in PAGE.read_text(), "the page shows the same"


def test_another_number_of_cpus_than_before_leaves_gaps() -> None:
    one = replace(QUIET, of=ProbedCpus(CpuSet.of(5)), busy={5: QUIET.busy[2]}, waking={5: QUIET.waking[2]})
    lines = render_latency(one, NOISY, None).splitlines()
    assert lines[0] == "CPU 5: two tests of 2 s each"
    assert [line.split("  ")[1] for line in lines[5:8]] == ["2 -> 5", "3 -> -", "all"]
    assert "24ms -> -" in lines[6]


def test_processes_of_the_pod_are_named_beside_what_they_disturbed() -> None:
    of = ProbedCpus(CpuSet.of(2), "default/web", "app", 3)
    assert "CPU 2 of default/web app, in use by 3 processes of the pod: " in render_latency(replace(QUIET, of=of))


def test_what_was_measured_is_read_back_as_it_was() -> None:
    document = documented((), QUIET, NOISY)
    assert read_latency(json.dumps(document).encode()) == QUIET
    of_no_pod = replace(NOISY, of=ProbedCpus(CpuSet.of(2, 3)))
    assert read_latency(json.dumps(documented(None, of_no_pod)).encode()) == of_no_pod


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"x", "not JSON"),
        (json.dumps({"kind": "Interference"}).encode(), "kind"),
        (json.dumps(describe_probe(())).encode(), "latency: is missing"),
        (
            json.dumps(describe_probe(None, replace(QUIET, busy={}))).encode(),
            "latency.busy: must contain at least one CPU",
        ),
    ],
)
def test_another_document_has_nothing_to_compare_with(text: bytes, said: str) -> None:
    with pytest.raises(MisfitError) as caught:
        read_latency(text)
    assert said in str(caught.value)


def test_memory_may_be_promised_of_several_nodes() -> None:
    found = ContainerMemory("default/web", "u", "app", NumaSet.of(0, 1), {0: 1, 1: 2, 2: 4})
    assert found.elsewhere == 4
