"""Every manifest in examples/ is one, fits the configuration beside it, and gets what its comment says."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from integration.examples import EXAMPLES, Example, Share, configurations
from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, initial
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from tests.support.builders import GIB

ALL = configurations()
FOLLOWING = EXAMPLES / "most-allocated-numa-node" / "config.yaml"
MACHINE = Topology.of(
    [Cpu(id=c, core=c // 2 * 2, socket=c // 4, numa=c // 4) for c in range(16)],
    [NumaNode(n, GIB, (), tuple(10 if n == other else 20 for other in range(4))) for n in range(4)],
    memory_bytes=4 * GIB,
)
"""4 NUMA nodes of 2 cores with 2 threads each."""


def pod_of(example: Example) -> Pod:
    (parsed,) = parse_manifest(example.text.encode(), str(example.path))
    assert isinstance(parsed, ManifestPod), parsed
    assert parsed.unused_fields == ()
    return parsed.pod


def managers_of(config: Config) -> Managers:
    node = on_machine(config, MACHINE)
    assert isinstance(node, NodeSetup), node
    return node.managers


def read(config: Path) -> Config:
    return parse_config(config.read_bytes(), str(config))


def name_of(example: Example) -> str:
    return example.name


@pytest.mark.parametrize(
    ("config", "example"),
    [
        pytest.param(c, e, id=f"{e.path.relative_to(EXAMPLES)} {e.name}")
        for c, examples in ALL.items()
        for e in examples
    ],
)
def test_it_gets_what_its_comment_says(config: Path, example: Example) -> None:
    managers, pod = managers_of(read(config)), pod_of(example)
    decided = admit(managers, initial(managers), pod)
    if example.refused is not None:
        assert isinstance(decided, Rejected)
        assert decided.reason == example.refused
        return
    assert isinstance(decided, Admitted), decided
    assert {name: share(managers, decided.promises, pod, name) for name in (c.name for c in pod.containers)} == dict(
        example.gets
    )


def share(managers: Managers, promises: Promises, pod: Pod, name: str) -> Share:
    level = isolation(managers, promises, pod, name)
    own = own_set_of(promises, pod.uid, name)
    return Share(level.value, None if own is None else len(own))


@pytest.mark.parametrize("config", ALL, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_names_are_given_once(config: Path) -> None:
    names = [example.name for example in ALL[config]]
    assert len(names) == len(set(names))
    assert all(example.gets or example.refused for example in ALL[config])


def test_every_directory_has_manifests() -> None:
    assert {path.parent for path in EXAMPLES.rglob("*.yaml")} == {
        e.path.parent for examples in ALL.values() for e in examples
    }


@pytest.mark.parametrize("is_on", [True, False])
def test_a_pod_joins_the_fuller_node_with_the_option_alone(is_on: bool) -> None:
    config = read(FOLLOWING)
    if not is_on:
        config = replace(config, placement=replace(config.placement, topology_manager_policy_options=()))
    managers = managers_of(config)
    promises, nodes = initial(managers), []
    for example in ALL[FOLLOWING]:
        pod = pod_of(example)
        decided = admit(managers, promises, pod)
        assert isinstance(decided, Admitted)
        promises = decided.promises
        own = own_set_of(promises, pod.uid, "app")
        assert own is not None
        nodes.append({cpu // 4 for cpu in own})
    assert nodes == [{1}, {1} if is_on else {0}]


def test_strictly_reserved_cpus_are_no_pods() -> None:
    managers = managers_of(read(EXAMPLES / "strict-reservation" / "config.yaml"))
    assert str(default_set(initial(managers))) == "2-15"
