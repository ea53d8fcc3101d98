"""The agent allocates claims: with documents of the manifest directory, over restarts and lost files, and says it in status documents."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.turn.claim_statuses import claim_directory
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.manifest_watch import ManifestWatch
from tests.daemon.test_recovery import two_nodes
from tests.support.claims import ETH0, NVME0
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.world import node

NODE = two_nodes()

CLASS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: nic}
spec: {selectors: [{cel: {expression: 'device.attributes["nodeagent.io"].kind == "network"'}}]}
"""
# An attribute that not every device has is asked for behind a test of its driver.
CLASS = CLASS.replace("'device.attr", """'device.driver == "nodeagent.io" && device.attr""")
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: near-nic}
spec:
  spec:
    devices:
      requests:
        - {name: cpus, exactly: {deviceClassName: dra.cpu, count: 2}}
        - {name: nic, exactly: {deviceClassName: nic}}
      constraints: [{matchAttribute: resource.kubernetes.io/numaNode}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  resourceClaims: [{name: own, resourceClaimTemplateName: near-nic}]
  containers:
    - name: app
      command: [sleep, infinity]
      resources: {limits: {cpu: "2", memory: 64Mi}, claims: [{name: own}]}
"""


class Directory:
    """The manifest directory of a running agent."""

    def __init__(self, path: Path, daemon: Daemon) -> None:
        self.path, self.daemon = path, daemon
        path.mkdir()

    def put(self, **files: str | None) -> None:
        for name, text in files.items():
            if text is None:
                (self.path / f"{name}.yaml").unlink()
            else:
                (self.path / f"{name}.yaml").write_text(text)
        self.daemon.files.look_again = self.look()
        self.daemon.rest()

    def look(self) -> PodSource:
        with closing(ManifestList(str(self.path), ManifestWatch(str(self.path), lambda: None), 20.0)) as listed:
            return listed.look(rescan=True)

    @property
    def problems(self) -> list[str]:
        return [problem.text for problem in self.look().problems]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(node(NODE, topology_manager_policy="restricted"))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        started(daemon)
        yield daemon


def started(daemon: Daemon) -> None:
    daemon.start()
    daemon.hardware.placed = PlacedDevices.of((ETH0, NVME0), NODE)
    daemon.rest()


@pytest.fixture
def manifests(tmp_path: Path, daemon: Daemon) -> Directory:
    return Directory(tmp_path / "manifests", daemon)


def held(daemon: Daemon, name: str) -> tuple[CpuSet | None, list[str]] | list[str]:
    entry = next(e for e in daemon.agent.state.entries if e.pod.name == name)
    if entry.refusal is not None:
        return [entry.refusal.reason, entry.refusal.message]
    own = daemon.agent.state.promises.of_pod(entry.pod.uid)
    return own.of(CpuHoldings).own_set("app"), [one.id for one in own.of(DeviceHoldings).devices_of("app")]


def statuses(daemon: Daemon) -> dict[str, Any]:
    directory = Path(claim_directory(daemon.agent.node.config))
    found = {str(path.relative_to(directory)): json.loads(path.read_text()) for path in directory.rglob("*.json")}
    return {name: document["status"] for name, document in found.items()}


def test_a_claim_is_allocated_said_kept_and_released(daemon: Daemon, manifests: Directory) -> None:
    manifests.put(a=f"{POD}---{TEMPLATE}---{CLASS}".replace("NAME", "a"))
    before = held(daemon, "a")
    cpus, devices = before
    assert isinstance(cpus, CpuSet)
    assert daemon.agent.node.topology.numa_of(cpus).bits == 2, "where eth0 is"
    assert devices == [ETH0.address]
    (request,) = daemon.requests
    assert dict(request.env)["NODEAGENT_DEVICES"] == ETH0.address
    uid = daemon.agent.state.entries[0].pod.uid
    (status,) = statuses(daemon).values()
    results = status["allocation"]["devices"]["results"]
    assert {(one["request"], one["driver"], one["device"]) for one in results} == {
        *(("cpus", "dra.cpu", f"cpudev{cpu:03}") for cpu in cpus),
        ("nic", "nodeagent.io", "pci-0000-3b-00-0"),
    }
    assert status["reservedFor"] == [{"resource": "pods", "name": "a", "uid": uid}]
    assert list(statuses(daemon)) == ["default/a-own.json"]
    daemon.files.look_again = manifests.look()
    started(daemon)
    assert held(daemon, "a") == before, "kept over a restart"
    assert len(daemon.requests) == 1, "and not restarted"
    manifests.put(b=POD.replace("NAME", "b"))
    assert held(daemon, "b") == [
        "ResourceClaimUnavailable",
        "claim default/b-own, request nic: 1 wanted, 1 device meets its selectors, 0 of them free",
    ]
    manifests.put(a=f"{TEMPLATE}---{CLASS}", b=None)
    assert statuses(daemon) == {}
    manifests.put(b=POD.replace("NAME", "b"))
    assert held(daemon, "b") == before, "with its last pod it is free again"


def test_a_pod_waits_for_a_document_and_one_that_runs_stays_without(daemon: Daemon, manifests: Directory) -> None:
    manifests.put(a=POD.replace("NAME", "a"))
    assert daemon.agent.state.entries == ()
    waits = (
        "pod default/a waits for ResourceClaimTemplate default/near-nic: put the document into the manifest directory"
    )
    assert manifests.problems == [waits]
    manifests.put(t=TEMPLATE)
    assert manifests.problems == [
        "pod default/a waits for DeviceClass nic: put the document into the manifest directory"
    ]
    manifests.put(u=CLASS)
    assert manifests.problems == []
    before = held(daemon, "a")
    assert isinstance(before, tuple)
    manifests.put(t=None)
    assert manifests.problems == [waits]
    assert held(daemon, "a") == before
    manifests.put(t=TEMPLATE, v=TEMPLATE)
    assert manifests.problems == [
        "ResourceClaimTemplate default/near-nic is also in another file, which is used: remove one of the two"
    ]
    assert held(daemon, "a") == before
    assert len(daemon.requests) == 1


@pytest.mark.parametrize("broken", ["expression: 'nonsense('", "expression: 5", "more: fields"])
def test_a_document_that_is_wrong_is_not_replaced_by_another(daemon: Daemon, manifests: Directory, broken: str) -> None:
    """Not by the class that there is without a document either, which has no selectors."""
    own = (
        CLASS.replace("name: nic", "name: dra.cpu")
        .replace("nodeagent.io", "dra.cpu")
        .replace("kind ==", "numaNodeID ==")
        .replace('"network"', "0")
    )
    of_cpus = TEMPLATE.replace("        - {name: nic, exactly: {deviceClassName: nic}}\n", "")
    manifests.put(a=POD.replace("NAME", "a"), t=of_cpus, u=own)
    before = held(daemon, "a")
    assert isinstance(before, tuple)
    assert daemon.agent.node.topology.numa_of(before[0] or CpuSet()).bits == 1
    wrong = own[: own.index("expression")] + broken + "}}]}\n"
    manifests.put(u=wrong, b=POD.replace("NAME", "b"), v=own.replace("== 0", "== 1"))
    waits = "waits for DeviceClass dra.cpu: put the document into the manifest directory"
    assert {f"pod default/{name} {waits}" for name in "ab"} < set(manifests.problems)
    assert held(daemon, "a") == before
    assert [entry.pod.name for entry in daemon.agent.state.entries] == ["a"]
    assert len(daemon.requests) == 1


def test_another_document_is_another_pod(daemon: Daemon, manifests: Directory) -> None:
    """As any change of a manifest: tried first, in its place."""
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    before = held(daemon, "a")
    manifests.put(t=TEMPLATE.replace("count: 2", "count: 3"))
    assert held(daemon, "a") == before
    (entry,) = daemon.agent.state.entries
    assert entry.change_refusal is not None
    assert "its claims have 3 CPUs" in entry.change_refusal.message
    both = POD.replace("NAME", "a").replace('"2"', '"3"')
    manifests.put(a=both)
    (entry,) = daemon.agent.state.entries
    assert len(held(daemon, "a")[0]) == 3


@pytest.mark.parametrize("lost", ["nodeagent_state", "cpu_manager_state", "everything"])
def test_lost_files_lose_no_claim(daemon: Daemon, manifests: Directory, lost: str) -> None:
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    before, said = held(daemon, "a"), statuses(daemon)
    for path in daemon.directory.iterdir():
        if path.is_file() and (lost in {path.name, "everything"}):
            path.unlink()
    started(daemon)
    daemon.turn(WakeUpReason.TIMER)
    daemon.rest()
    assert held(daemon, "a") == before
    assert statuses(daemon) == said
    assert len(daemon.requests) == 1


SHARED = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: cards}
spec:
  devices:
    requests:
      - {name: nic, exactly: {deviceClassName: nic}}
      - {name: rest, exactly: {deviceClassName: nodeagent.io}}
"""


def test_a_shared_claim_is_said_whole_and_kept_by_parts(daemon: Daemon, manifests: Directory) -> None:
    whole = POD.replace("resourceClaimTemplateName: near-nic", "resourceClaimName: cards")
    part = whole.replace("claims: [{name: own}]", "claims: [{name: own, request: rest}]")
    manifests.put(a=whole.replace("NAME", "a"), s=SHARED, u=CLASS)
    manifests.put(b=part.replace("NAME", "b"))
    before, said = (held(daemon, "a"), held(daemon, "b")), statuses(daemon)
    assert [devices for _, devices in before] == [[ETH0.address, NVME0.address], [NVME0.address]]
    (status,) = said.values()
    assert [one["request"] for one in status["allocation"]["devices"]["results"]] == ["nic", "rest"]
    assert [one["device"] for one in status["devices"]] == ["pci-0000-3b-00-0", "pci-0000-40-00-0"]
    assert [one["name"] for one in status["reservedFor"]] == ["a", "b"]
    for path in daemon.directory.iterdir():
        if path.is_file():
            path.unlink()
    started(daemon)
    daemon.turn(WakeUpReason.TIMER)
    daemon.rest()
    assert ((held(daemon, "a"), held(daemon, "b")), statuses(daemon)) == (before, said)
    manifests.put(a=None)
    assert [one["request"] for one in statuses(daemon)["default/cards.json"]["allocation"]["devices"]["results"]] == [
        "rest"
    ]


def test_what_runs_runs_on_when_nothing_tells_its_claims(daemon: Daemon, manifests: Directory) -> None:
    """Its CPUs are seen in its cgroup; of its card nobody knows, and it may be given to another."""
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    cpus, _ = held(daemon, "a")
    for path in daemon.directory.iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(claim_directory(daemon.agent.node.config))
    started(daemon)
    daemon.turn(WakeUpReason.TIMER)
    daemon.rest()
    assert held(daemon, "a") == (cpus, [])
    assert len(daemon.requests) == 1
    manifests.put(a=None)
    manifests.put(b=POD.replace("NAME", "b"))
    assert held(daemon, "b") == (cpus, [ETH0.address])


@pytest.mark.parametrize("unreadable", ["its manifest", "its claim's document"])
def test_a_card_is_nobody_elses_while_its_pod_runs_and_can_not_be_read(
    daemon: Daemon, manifests: Directory, unreadable: str
) -> None:
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    before, said = held(daemon, "a"), statuses(daemon)
    of_a = daemon.agent.state.entries[0].pod.uid
    for path in daemon.directory.iterdir():
        if path.is_file():
            path.unlink()
    name, text = {"its manifest": ("a", POD.replace("NAME", "a")), "its claim's document": ("t", TEMPLATE)}[unreadable]
    other = TEMPLATE.replace("near-nic", "other")
    (manifests.path / f"{name}.yaml").write_text("kind: [")
    (manifests.path / "b.yaml").write_text(POD.replace("NAME", "b").replace("near-nic", "other"))
    (manifests.path / "v.yaml").write_text(other)
    daemon.files.look_again = manifests.look()
    started(daemon)
    daemon.turn(WakeUpReason.TIMER)
    daemon.rest()
    refused = [
        "ResourceClaimUnavailable",
        "claim default/b-own, request nic: 1 wanted, 1 device meets its selectors, 0 of them free",
    ]
    assert held(daemon, "b") == refused
    assert [one["reservedFor"] for one in statuses(daemon).values()] == [
        [{"resource": "pods", "name": "a", "uid": of_a}]
    ]
    started(daemon)
    daemon.rest()
    daemon.agent.retry(frozenset({next(e.pod.uid for e in daemon.agent.state.entries if e.pod.name == "b")}))
    daemon.rest()
    assert held(daemon, "b") == refused, "nor after another restart"
    manifests.put(**{name: text})
    assert (held(daemon, "a"), statuses(daemon)) == (before, said)
    assert len(daemon.requests) == 1, "and it has not been restarted"


def begun_without_state(daemon: Daemon, manifests: Directory) -> None:
    """And without the manifest of pod a, which runs."""
    for file in daemon.directory.iterdir():
        if file.is_file():
            file.unlink()
    (manifests.path / "a.yaml").unlink()
    daemon.files.look_again = manifests.look()
    started(daemon)
    daemon.rest()


def test_what_nobody_knows_has_its_card_until_it_has_ended(daemon: Daemon, manifests: Directory) -> None:
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    before = held(daemon, "a")
    path = daemon.agent.state.entries[0].container_path("app")
    begun_without_state(daemon, manifests)
    assert daemon.agent.state.entries == ()
    assert list(statuses(daemon)) == ["default/a-own.json"]
    daemon.machine.groups[path].processes.clear()
    daemon.turn(WakeUpReason.CGROUPS)
    daemon.rest()
    assert statuses(daemon) == {}
    manifests.put(b=POD.replace("NAME", "b"))
    assert held(daemon, "b") == before


@pytest.mark.parametrize(("namespace", "name"), [("..", "a-own"), ("default", "../../a-own"), ("default", "a\\u0000")])
def test_a_document_of_what_is_kept_elsewhere_is_none(
    daemon: Daemon, manifests: Directory, namespace: str, name: str
) -> None:
    """Otherwise it would be written there, for a pod that nobody knows."""
    manifests.put(a=POD.replace("NAME", "a"), t=TEMPLATE, u=CLASS)
    (path,) = Path(claim_directory(daemon.agent.node.config)).rglob("*.json")
    text = path.read_text().replace('"namespace": "default"', f'"namespace": "{namespace}"')
    path.write_text(text.replace('"name": "a-own"', f'"name": "{name}"'))
    begun_without_state(daemon, manifests)
    assert (daemon.agent.state.promises.unrecovered, statuses(daemon)) == ((), {})


def test_documents_that_contradict_each_other_give_nothing_twice(daemon: Daemon, manifests: Directory) -> None:
    """Somebody has copied one: the second claim has the first one's card, too."""
    other = POD.replace("NAME", "b").replace("near-nic", "cpus")
    only_cpus = TEMPLATE.replace("near-nic", "cpus").replace(
        "        - {name: nic, exactly: {deviceClassName: nic}}\n", ""
    )
    manifests.put(a=POD.replace("NAME", "a"), b=other, t=TEMPLATE, u=CLASS, v=only_cpus)
    before = held(daemon, "a"), held(daemon, "b")
    directory = Path(claim_directory(daemon.agent.node.config)) / "default"
    copied = json.loads((directory / "a-own.json").read_text())
    own = json.loads((directory / "b-own.json").read_text())
    own["status"]["devices"] = copied["status"]["devices"]
    own["status"]["allocation"]["devices"]["results"] += [
        one | {"request": "cpus"}
        for one in copied["status"]["allocation"]["devices"]["results"]
        if "pci" in one["device"]
    ]
    (directory / "b-own.json").write_text(json.dumps(own))
    for path in daemon.directory.iterdir():
        if path.is_file():
            path.unlink()
    started(daemon)
    daemon.rest()
    after = held(daemon, "a"), held(daemon, "b")
    assert [cpus for cpus, _ in after] == [cpus for cpus, _ in before]
    assert sum(len(devices) for _, devices in after) == 1
