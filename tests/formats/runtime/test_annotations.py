"""What pods of a container runtime state in annotations, and what is wrong with it: pod, annotation, value, next step."""

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.domains.runtime.stated_pod import StatedContainer, StatedPod
from nodeagent.core.model.nri import Sandbox
from nodeagent.core.model.pod import ContainerKind
from nodeagent.formats.runtime.annotations import CONTAINERS, LIMITS, REQUESTS, ReadAnnotations, read_annotations
from tests.support.pods import amounts, pod
from tests.support.runtime_pods import sandbox_of

WORKER = f"{REQUESTS}/worker"
OWN = "devices.nodeagent.io/worker"


def read(**annotations: str) -> ReadAnnotations:
    return read_annotations(sandbox_of(pod("p"), **annotations))


def test_everything_that_can_be_stated() -> None:
    found = read(
        **{
            CONTAINERS: "worker, setup=init, proxy=sidecar, log=app",
            WORKER: "cpu=1500m, memory=2Gi,hugepages-2Mi=64Mi",
            f"{LIMITS}/worker": "cpu=2",
            f"{LIMITS}/setup": "cpu=1",
            "exclusive-cpus.nodeagent.io/worker": "1",
            "interrupts.nodeagent.io/worker": "eth0, 0000:3b:00.0",
            "nodeagent.io/partition": "isolated",
            "nodeagent.io/numa-node": "1",
            "nodeagent.io/preferred-core-class": "performance",
            "nodeagent.io/near": "eth0",
            "near.nodeagent.io/proxy": "nvme, nvme0",
            "devices.nodeagent.io/proxy": "example.com/vf=2, example.com/nic=1",
            "kubernetes.io/config.source": "file",
            "example.com/requests.nodeagent.io": "not ours",
        }
    )
    assert found == ReadAnnotations(
        StatedPod(
            (
                StatedContainer("setup", ContainerKind.INIT, limits=amounts("1", None)),
                StatedContainer(
                    "proxy",
                    ContainerKind.SIDECAR,
                    near=("nvme", "nvme0"),
                    devices=(("example.com/nic", 1), ("example.com/vf", 2)),
                ),
                StatedContainer(
                    "worker",
                    ContainerKind.APP,
                    amounts("1500m", "2Gi", hugepages_2Mi="64Mi"),
                    amounts("2", None),
                    exclusive_cpus=1,
                    interrupts=("eth0", "0000:3b:00.0"),
                ),
                StatedContainer("log", ContainerKind.APP),
            ),
            names_all=True,
            is_isolated=True,
            numa_node=1,
            preferred_core_class="performance",
            near=("eth0",),
        )
    )


def test_a_class_of_cores_is_stated() -> None:
    assert read(**{"nodeagent.io/core-class": "efficiency"}) == ReadAnnotations(StatedPod(core_class="efficiency"))


def test_nothing_is_stated() -> None:
    assert read() == ReadAnnotations(StatedPod())


def test_without_a_list_any_container_may_come() -> None:
    found = read(**{f"{REQUESTS}/b": "cpu=1", f"{LIMITS}/a": "memory=1Gi"})
    assert found == ReadAnnotations(
        StatedPod(
            (
                StatedContainer("a", limits=amounts(None, "1Gi")),
                StatedContainer("b", requests=amounts("1", None)),
            )
        )
    )


@pytest.mark.parametrize(
    ("key", "text", "finding"),
    [
        (OWN, "2", '"2": must be numbers of devices such as example.com/nic=1'),
        (OWN, "nic=1", '"nic=1": "nic" is not a name of devices such as example.com/nic'),
        (OWN, "example.com/nic=0", '"example.com/nic=0": must be numbers of devices such as example.com/nic=1'),
        (OWN, "example.com/nic=1500m", '"example.com/nic=1500m": must be numbers of devices such as example.com/nic=1'),
        (OWN, "a.b/nic=1, a.b/nic=2", '"a.b/nic=1, a.b/nic=2": has a.b/nic twice: remove one of them'),
        (WORKER, "2", '"2": must be amounts such as cpu=1500m, memory=2Gi, hugepages-2Mi=64Mi'),
        (WORKER, "", '"": must be amounts such as cpu=1500m'),
        (WORKER, "cpu=2;memory=1Gi", '"2;memory=1Gi": must be a quantity such as 2, 500m or 1Gi'),
        (WORKER, "memory=4GB", '"4GB": GB is not a unit: 4G or 4Gi'),
        (WORKER, "cpu=-1", '"-1": must be greater than or equal to 0'),
        (WORKER, "cpu=1, cpu=2", '"cpu=1, cpu=2": has cpu twice: remove one of them'),
        (WORKER, "cpus=1", '"cpus" is not placed by this agent, did you mean cpu?'),
        (WORKER, "nvidia.com/gpu=1", '"nvidia.com/gpu" is not placed by this agent: leave it out'),
        (f"{REQUESTS}/", "cpu=1", "must name a container of this pod after the slash"),
        (f"{LIMITS}/A", "cpu=1", "must name a container of this pod after the slash"),
        (CONTAINERS, "a b", '"a b": must name all containers of the pod in order, such as setup=init'),
        (CONTAINERS, "a,", '"": must name all containers of the pod in order'),
        (CONTAINERS, "a=daemon", '"daemon" is not a kind of container: init, sidecar, app'),
        (CONTAINERS, "a, b, a", "names a twice: remove one of them"),
        (CONTAINERS, ",".join(f"c{n}" for n in range(257)), "names more than 256 containers"),
        ("exclusive-cpus.nodeagent.io/a", "two", '"two": must be a whole number of CPUs, such as "2"'),
        ("interrupts.nodeagent.io/a", "not/a/device", "must list network interfaces or PCI addresses"),
        ("nodeagent.io/partition", "yes", '"yes": must be one of root, isolated'),
        ("nodeagent.io/numa-node", "any", '"any": must be the number of a NUMA node, such as "0"'),
        ("nodeagent.io/core-class", "any", '"any": must be one of performance, efficiency'),
        ("request.nodeagent.io/a", "cpu=1", "is not an annotation of this agent: use one of nodeagent.io/containers,"),
        ("nodeagent.io/numa", "0", "is not an annotation of this agent"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_pod_and_annotation(key: str, text: str, finding: str) -> None:
    found = [str(one) for one in read(**{key: text}).findings]
    assert len(found) == 1
    assert found[0].startswith(f"pod default/p: metadata.annotations[{key}]: ")
    assert finding in found[0]


def test_an_annotation_for_a_container_that_the_list_leaves_out_is_a_mistake() -> None:
    found = read(**{CONTAINERS: "worker", f"{LIMITS}/worked": "cpu=1"})
    assert [one.allowed for one in found.findings] == [
        f"must name a container that {CONTAINERS} names, did you mean worker?"
    ]


KEYS = (CONTAINERS, WORKER, f"{LIMITS}/a", "exclusive-cpus.nodeagent.io/a", "nodeagent.io/partition", "nodeagent.io/")
pieces = st.sampled_from(
    ["cpu", "=", ",", " ", "a", "memory", "1", "500m", "init", "-", "hugepages-2Mi", "\x00", "\ud800"]
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=20), st.lists(pieces, max_size=12).map("".join)))
def test_any_text_is_read_or_found_wrong(annotations: dict[str, str]) -> None:
    box: Sandbox = replace(sandbox_of(pod("p")), annotations=tuple(sorted(annotations.items())))
    found = read_annotations(box)
    assert found == read_annotations(box)
    assert all(str(one).isprintable() for one in found.findings)
