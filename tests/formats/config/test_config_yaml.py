"""Configuration files: what is taken over, what is refused and with which words."""
# ruff: noqa: E501 (tables: one case, one line)

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.config import DEFAULT_GATES, Config, Errata, JobBounds, JobShare, Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import SHIPPED_PROFILES, ProcessSettings, Profile, QuietSettings
from nodeagent.daemon.start.node_builder import find_unsuited
from nodeagent.formats.config import config_schema
from nodeagent.formats.config.config_text import config_fields, config_text
from nodeagent.formats.config.config_yaml import judge_config, known_fields, parse_config
from nodeagent.formats.config.effective_config import config_document, config_from_document
from nodeagent.formats.scenario.scenario import placement_from_scenario
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.findings import DocumentError, Finding
from nodeagent.formats.syntax.json_values import JsonValue
from tests.support.builders import MACHINE_A

EXAMPLE = Path(__file__).parents[3] / "examples" / "config.yaml"


def read(text: str) -> Config:
    return parse_config(text.encode(), "f")


def refused(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read(text)
    assert caught.value.hint
    return [str(finding).removeprefix("f:") for finding in caught.value.findings]


def amounts(**given: str) -> Resources:
    return Resources.of({name: Quantity.parse(text) for name, text in given.items()})


def test_nothing_configured_is_the_default() -> None:
    expected = Config(placement=Placement(memory_reservation=amounts(memory="100Mi")))
    assert read("") == read("# nothing\n") == read("{}") == read("kind: NodeAgentConfiguration\n") == expected


def test_the_example_loads_and_says_the_defaults_but_for_what_makes_exclusive_cpus() -> None:
    config = read(EXAMPLE.read_text())
    given = (
        "cpuManagerPolicy: static",
        "reservedSystemCPUs: '0'",
        "hostIsolation: partition",
        "interruptIsolation: affinity",
    )
    assert config == read("\n".join([*given, ""]))


def test_the_host_has_a_class_of_cores_where_it_is_isolated() -> None:
    assert read("hostIsolation: partition\nhostCoreClass: efficiency").host_core_class == "efficiency"
    assert refused("hostCoreClass: efficiency") == ['1: hostCoreClass: "efficiency": needs hostIsolation: partition']
    assert "must be one of any, performance, efficiency" in refused("hostCoreClass: fast")[0]
    assert read("hostCoreClass: any").host_core_class == "any"


KUBELETS = frozenset({"apiVersion", "kind", "cpuManagerPolicy", "cpuManagerPolicyOptions", "cpuManagerReconcilePeriod", "reservedSystemCPUs", "systemReserved", "kubeReserved", "topologyManagerPolicy", "topologyManagerScope", "topologyManagerPolicyOptions", "memoryManagerPolicy", "reservedMemory", "evictionHard", "mergeDefaultEvictionSettings", "featureGates", "fileCheckFrequency", "cpuCFSQuota", "cpuCFSQuotaPeriod", "memorySwap", "maxPods", "podPidsLimit", "podsPerCore", "staticPodPath", "cgroupRoot", "cgroupsPerQOS", "kubeReservedCgroup", "systemReservedCgroup"})  # fmt: skip
"""Fields that kubelet has too and that mean something here."""


def test_the_example_has_every_field_of_the_agents_own() -> None:
    own = known_fields() - KUBELETS
    given = set(re.findall(r"^([A-Za-z]+):", EXAMPLE.read_text(), re.MULTILINE))
    assert own - given == {"errata"}, "which is for simulate only"


def test_a_kubelets_file_works_as_it_is() -> None:
    # As kubeadm writes it, with the managers' fields added.
    config = parse_config(
        b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
cgroupDriver: systemd
cgroupRoot: /
clusterDNS: [10.96.0.10]
cpuManagerPolicy: static
cpuManagerReconcilePeriod: 0s
evictionPressureTransitionPeriod: 0s
featureGates: {CPUManagerPolicyAlphaOptions: true, CPUManagerPolicyOptions: true, RotateKubeletServerCertificate: true}
kubeReserved: {cpu: 500m, memory: 1Gi}
systemReserved: {cpu: 250m, memory: 512Mi, ephemeral-storage: 1Gi}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}}}
maxPods: 110
reservedMemory:
- {numaNode: 0, limits: {memory: 1636Mi}}
staticPodPath: /etc/kubernetes/manifests
""",
        "f",
    )
    assert config == Config(
        placement=Placement(
            cpu_manager_policy="static",
            reserved_cpu_milli=750,
            reserved_memory=(ReservedMemory(0, amounts(memory="1636Mi")),),
            memory_reservation=amounts(memory="1636Mi"),
            feature_gates=(("CPUManagerPolicyAlphaOptions", True),),
        ),
        static_pod_path="/etc/kubernetes/manifests",
        max_pods=110,
        kube_reserved=amounts(cpu="500m", memory="1Gi"),
        system_reserved=Resources.of(
            {"ephemeral-storage": Quantity.parse("1Gi"), **dict(amounts(cpu="250m", memory="512Mi"))}
        ),
        reported_fields=(
            "authentication",
            "cgroupDriver",
            "cgroupRoot",
            "clusterDNS",
            "evictionPressureTransitionPeriod",
            "featureGates[CPUManagerPolicyOptions]",
            "featureGates[RotateKubeletServerCertificate]",
            "logging",
        ),
    )


def test_every_own_field_is_read() -> None:
    assert read("""
kind: NodeAgentConfiguration
manifestDirectory: /m/
stateDirectory: /s
runtimeDirectory: /r
logDirectory: /l
cgroupRoot: /sys/fs/cgroup/x.service
launcherSocket: /r/l.sock
metricsBindAddress: unix:/r/m.sock
metricsAliases: false
metricsContainers: false
podResourcesSocket: /r/p.sock
nriSocket: /r/n.sock
kubeletPodsSocket: /r/k.sock
checkAllocatable: no
maxPods: 7
podsPerCore: 3
stateRecovery: strict
cpuCFSQuota: false
cpuCFSQuotaPeriod: 20ms
cpuManagerReconcilePeriod: 1m30s
fileCheckFrequency: 1.5s
featureGates: {CustomCPUCFSQuotaPeriod: true}
""") == Config(
        placement=Placement(
            feature_gates=(("CustomCPUCFSQuotaPeriod", True),), memory_reservation=amounts(memory="100Mi")
        ),
        cpu_manager_reconcile_period_ms=90_000,
        file_check_frequency_ms=1_500,
        cpu_cfs_quota=False,
        cpu_cfs_quota_period_us=20_000,
        static_pod_path="/m",
        state_directory="/s",
        runtime_directory="/r",
        log_directory="/l",
        cgroup_root="/sys/fs/cgroup/x.service",
        launcher_socket="/r/l.sock",
        metrics_bind_address="unix:/r/m.sock",
        metrics_aliases=False,
        metrics_containers=False,
        pod_resources_socket="/r/p.sock",
        nri_socket="/r/n.sock",
        kubelet_pods_socket="/r/k.sock",
        check_allocatable=False,
        max_pods=7,
        pods_per_core=3,
        state_recovery="strict",
    )


def test_periods_may_be_as_long_as_a_kubelets_are() -> None:
    config = read("cpuManagerReconcilePeriod: 24h\nfileCheckFrequency: 2h0m0s\n")
    assert (config.cpu_manager_reconcile_period_ms, config.file_check_frequency_ms) == (86_400_000, 7_200_000)


def test_a_list_of_reserved_cpus_replaces_the_amounts() -> None:
    config = read("reservedSystemCPUs: 0-1,8\nsystemReserved: {cpu: 5, memory: 1Gi}\nkubeReserved: {cpu: 100m}\n")
    assert config.placement.reserved_system_cpus == CpuSet.of(0, 1, 8)
    assert config.placement.reserved_cpu_milli == 3000
    assert config.system_reserved == amounts(cpu="3", memory="1Gi")
    assert config.kube_reserved == Resources()
    assert config.placement.memory_reservation == amounts(memory="1124Mi")


@pytest.mark.parametrize(
    ("text", "in_bytes", "in_percent"),
    [
        ("", 100 * 2**20, None),
        ("evictionHard: {}", 100 * 2**20, None),
        ("evictionHard: {memory.available: 1Gi}", 2**30, None),
        ("evictionHard: {memory.available: 5%}", None, "5"),
        ("evictionHard: {memory.available: 7.5%}", None, "7.5"),
        ("evictionHard: {memory.available: 0%}", None, None),
        ("evictionHard: {memory.available: 100%}", None, None),
        # Naming another signal drops the default, unless the defaults are merged in.
        ("evictionHard: {nodefs.available: 10%}", None, None),
        ("evictionHard: {nodefs.available: 10%}\nmergeDefaultEvictionSettings: true", 100 * 2**20, None),
        ("evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true", None, "5"),
    ],
)
def test_the_eviction_threshold_is_kubelets(text: str, in_bytes: int | None, in_percent: str | None) -> None:
    config = read(text)
    assert (config.eviction_memory_bytes, config.eviction_memory_percent) == (in_bytes, in_percent)


FINDINGS = [
    ("cpuManagerPolicy: statik", '1: cpuManagerPolicy: unknown policy: "statik", must be none or static'),
    ("cpuManagerPolicy: Static\nreservedSystemCPUs: '0'", 'unknown policy: "Static"'),
    ("cpuManagerPolicy: static", "1: cpuManagerPolicy: static needs reserved CPUs: set reservedSystemCPUs, or cpu in systemReserved or kubeReserved"),
    ("cpuManagerPolicy: static\nsystemReserved: {cpu: 0}", "static needs reserved CPUs"),
    ("cpuManagerPolicyOptions: {full-pcpus-only: true}", "1: cpuManagerPolicyOptions[full-pcpus-only]: true: must be a string (quote it), not a boolean"),
    ("cpuManagerReconcilePeriod: 5", "1: cpuManagerReconcilePeriod: 5: must be a duration such as 10s or 1m30s, not a number"),
    ("cpuManagerReconcilePeriod: 5x", '1: cpuManagerReconcilePeriod: "5x": must be a duration such as 10s or 1m30s'),
    ("cpuManagerReconcilePeriod: -5s", '1: cpuManagerReconcilePeriod: "-5s": must be between 100ms and 24h'),
    ("cpuManagerReconcilePeriod: 24h0m1s", "must be between 100ms and 24h"),
    ("fileCheckFrequency: 25h", "must be between 100ms and 24h"),
    ("topologyManagerPolicy: best", '1: topologyManagerPolicy: "best": must be one of none, best-effort, restricted, single-numa-node'),
    ("topologyManagerScope: node", '1: topologyManagerScope: "node": must be container or pod'),
    ("memoryManagerPolicy: static", '1: memoryManagerPolicy: unknown policy: "static", must be None or Static'),
    ("reservedSystemCPUs: 3-1", '1: reservedSystemCPUs: "3-1": must be CPU numbers and ranges such as 0-3,8 (lower number first'),
    ("reservedSystemCPUs: 0", "1: reservedSystemCPUs: 0: must be a string (quote it), not a number"),
    ("reservedSystemCPUs: 0-9999999999", "at most 65535)"),
    ("reservedSystemCPUs: 0-1\nkubeReservedCgroup: /x", "1: reservedSystemCPUs: must not be given together with kubeReservedCgroup"),
    ("systemReserved: {gpu: 1}", '1: systemReserved: cannot reserve "gpu" resource'),
    ("systemReserved: {memory: -1Gi}", '1: systemReserved: resource quantity for "memory" cannot be negative: -1Gi'),
    ("kubeReserved: {cpu: x}", '1: kubeReserved[cpu]: "x": must be a quantity such as 2, 500m or 1Gi'),
    ("reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]", '1: reservedMemory: invalid configuration: the limit type "cpu" for NUMA node 0 is not supported, only [memory hugepages-<HugePageSize>] is accepted'),
    ("reservedMemory: [{numaNode: 1, limits: {memory: 0}}]", '1: reservedMemory: invalid configuration: reserved memory may not be zero for NUMA node 1 and resource "memory"'),
    ("reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 2}}]", '1: reservedMemory: invalid configuration: the reserved memory has a duplicate value for NUMA node 0 and resource "memory"'),
    ("reservedMemory: [{numaNode: -1, limits: {memory: 1}}]", "1: reservedMemory[0].numaNode: -1: must be between 0"),
    ("reservedMemory: [{numaNode: 0}]", "1: reservedMemory[0].limits: is required"),
    ("reservedMemory: [{numaNode: 0, limit: {memory: 1}}]", "1: reservedMemory[0].limit: unknown field, did you mean limits?"),
    ("evictionHard: {memory.avail: 5%}", "1: evictionHard: unknown eviction signal memory.avail"),
    ("evictionHard: {memory.available: 101%}", "1: evictionHard: eviction percentage threshold memory.available must be <= 100%: 101%"),
    ("evictionHard: {memory.available: -5%}", '1: evictionHard: "-5%": memory.available must be an amount or a percentage such as 5%'),
    ("evictionHard: {memory.available: x%}", "must be an amount or a percentage"),
    ("evictionHard: {memory.available: -1Gi}", "1: evictionHard: eviction threshold memory.available must be positive: -1Gi"),
    ("evictionHard: {memory.available: some}", '1: evictionHard: "some": must be a quantity such as 2, 500m or 1Gi'),
    ("featureGates: {PodLevelResources: 'true'}", '1: featureGates[PodLevelResources]: "true": must be true or false, not a string'),
    ("featureGates: {CPUManagerPolicyAlphaOption: true}", '1: featureGates: "CPUManagerPolicyAlphaOption": unknown feature gate, did you mean CPUManagerPolicyAlphaOptions?'),
    ("featureGates: {podLevelResources: true}", '"podLevelResources": unknown feature gate, did you mean PodLevelResources?'),
    ("featureGates: {PodLevelResourceManagers: true, PodLevelResources: false}", "1: featureGates: PodLevelResourceManagers is on and needs PodLevelResources, which is off: turn both on or both off"),
    ("featureGates: {AllAlpha: true, PodLevelResources: false}", "PodLevelResourceManagers is on and needs PodLevelResources"),
    ("featureGates: {AllAlpha: true, AllBeta: false}", "PodLevelResourceManagers is on and needs PodLevelResources"),
    ("featureGates: {AllBeta: false, PodLevelResourceManagers: true}", "PodLevelResourceManagers is on and needs PodLevelResources"),
    ("featureGates: {AllAlphas: true}", '"AllAlphas": unknown feature gate, did you mean AllAlpha?'),
    ("featureGates: {MemoryManager: false}\nmemoryManagerPolicy: Static\nsystemReserved: {memory: 1Gi}\nreservedMemory: [{numaNode: 0, limits: {memory: 1124Mi}}]", "1: featureGates: MemoryManager is off, and memoryManagerPolicy: Static needs it: remove the gate, or write memoryManagerPolicy: None"),
    ("featureGates: {CPUManager: false}\ncpuManagerPolicy: static\nreservedSystemCPUs: '0'", "1: featureGates: CPUManager is off, and cpuManagerPolicy: static needs it: remove the gate, or write cpuManagerPolicy: none"),
    ("featureGates: {TopologyManager: false}\ntopologyManagerPolicy: restricted", "1: featureGates: TopologyManager is off, and topologyManagerPolicy: restricted needs it: remove the gate, or write topologyManagerPolicy: none"),
    ("memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nsystemReserved: {memory: 500Mi}\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]", "4: reservedMemory: the reserved memory must add up to 1624Mi, not 100Mi (the sum of systemReserved, kubeReserved and evictionHard)"),
    ("memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}", "reservedMemory: add reservedMemory: [{numaNode: 0, limits: {memory: 1124Mi}}] (memoryManagerPolicy Static needs 1124Mi, the sum of systemReserved, kubeReserved and evictionHard)"),
    ("memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: '5%'}\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]", "4: reservedMemory: the reserved memory must add up to at least 1074580684 bytes, not 1073741824 bytes (the sum of systemReserved, kubeReserved and evictionHard)"),
    ("memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nreservedMemory: [{numaNode: 0, limits: {memory: 1124Mi, hugepages-1Gi: 1Gi}}]", "3: reservedMemory: the reserved hugepages-1Gi must add up to 0, not 1Gi (the sum of systemReserved, kubeReserved and evictionHard)"),
    ("featureGates: {CPUManagerPolicyOptions: false}", "1: featureGates: cannot set feature gate CPUManagerPolicyOptions to false, feature is locked to true"),
    ("cpuCFSQuotaPeriod: 20ms", '1: cpuCFSQuotaPeriod: "20ms": other than 100ms requires feature gate CustomCPUCFSQuotaPeriod'),
    ("cpuCFSQuotaPeriod: 2s\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}", '1: cpuCFSQuotaPeriod: "2s": must be between 1ms and 1sec, inclusive'),
    ("cpuCFSQuotaPeriod: 999us\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}", "must be between 1ms and 1sec, inclusive"),
    ("maxPods: -1", "1: maxPods: -1: must be between 0 and 2147483647"),
    ("maxPods: 99999999999", "must be between 0 and 2147483647"),
    ("cgroupsPerQOS: false", "1: cgroupsPerQOS: false: must be true"),
    ("errata: kubelet-1.36", '1: errata: "kubelet-1.36": is for nodeagent simulate only'),
    ("errata: fixed", "is for nodeagent simulate only"),
    ("numReservedCPUs: 2", "1: numReservedCPUs: unknown field, did you mean reservedSystemCPUs?"),
    ("cpuManagerPolcy: none", "1: cpuManagerPolcy: unknown field, did you mean cpuManagerPolicy?"),
    ("cpumanagerpolicy: none", "1: cpumanagerpolicy: unknown field, did you mean cpuManagerPolicy?"),
    ("xyzzy: 1", "1: xyzzy: unknown field"),
    ("staticPodPath: etc", '1: staticPodPath: "etc": must be an absolute path other than / and without . or ..'),
    ("manifestDirectory: /a/../b", "must be an absolute path"),
    ("manifestDirectory: /", "must be an absolute path"),
    ("manifestDirectory: /a//b", "must be an absolute path"),
    ("staticPodPath: /a\nmanifestDirectory: /b", '2: manifestDirectory: "/b": has the same meaning as staticPodPath: set only one of them'),
    ("stateDirectory: /etc/nodeagent/manifests", '1: manifestDirectory: "/etc/nodeagent/manifests": must differ from stateDirectory'),
    (f"launcherSocket: /{'x' * 107}", "must be at most 107 bytes long"),
    (f"podResourcesSocket: /{'x' * 107}", "must be at most 107 bytes long"),
    ("podResourcesSocket: pod-resources.sock", "must be an absolute path"),
    ("nriSocket: nri.sock", "must be an absolute path"),
    ("kubeletPodsSocket: pods.sock", "must be an absolute path"),
    ("podResourcesSocket: unix:/x", "must be an absolute path"),
    ("cgroupRoot: kubepods", "must be an absolute path"),
    ("metricsBindAddress: 9753", "must be a string"),
    ("metricsBindAddress: '9753'", "1: metricsBindAddress: '9753' is not an address: HOST:PORT"),
    ("metricsBindAddress: '127.0.0.1:99999'", "not a number from 1 to 65535"),
    ("metricsBindAddress: 'unix:run/x'", "needs an absolute path"),
    ("memorySwap: {swapBehavior: Some}", '1: memorySwap.swapBehavior: "Some": must be one of NoSwap, LimitedSwap, UnlimitedSwap'),
    ("memorySwap: NoSwap", '1: memorySwap: "NoSwap": must be an object, not a string'),
    ("stateRecovery: maybe", '1: stateRecovery: "maybe": must be one of recover, strict'),
    ("kind: KubeletConfig", '1: kind: "KubeletConfig": must be KubeletConfiguration or NodeAgentConfiguration, or absent'),
    ("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1", '2: apiVersion: "kubelet.config.k8s.io/v1": must be kubelet.config.k8s.io/v1beta1'),
    ("a: 1\n---\nb: 2", "3: a configuration must be one document, but a second one starts here"),
    ("- 1", "1: must be an object of fields"),
    ("maxPods: 1\nmaxPods: 2", '2: "maxPods": is given twice, first in line 1'),
    ("maxPods: [", "1: is not valid YAML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "finding"), FINDINGS)
def test_names_line_field_value_and_what_is_allowed(text: str, finding: str) -> None:
    assert any(finding in found for found in refused(text + "\n"))


AMOUNTS = [
    "systemReserved: {cpu: -1}",
    "kubeReserved: {cpu: 1e18}",
    "systemReserved: {memory: -5Gi}\nreservedMemory: [{numaNode: 0, limits: {memory: -5Gi}}]",
    "evictionHard: {memory.available: 12000%}",
    "reservedMemory: [{numaNode: 0, limits: {hugepages-: 1}}, {numaNode: -3, limits: {memory: 1e30}}]",
]


@pytest.mark.parametrize("text", [*(row[0] for row in FINDINGS), *AMOUNTS])
def test_a_machine_can_be_asked_about_what_is_wrong_already(text: str) -> None:
    both = f"cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n{text}\n"
    _, alone = judge_config(both.encode(), "f")
    _, found = judge_config(both.encode(), "f", lambda config: find_unsuited(config, MACHINE_A))
    assert found
    # Without a machine, a percentage gives only a bound.
    assert {finding for finding in alone if "at least" not in finding.message} <= set(found)
    assert {finding.field for finding in alone} <= {finding.field for finding in found}


def test_a_percentage_leaves_the_sum_of_the_reserved_memory_to_the_machine() -> None:
    text = "memoryManagerPolicy: Static\nkubeReserved: {memory: 1Gi}\nevictionHard: {memory.available: '5%'}\n"
    text += "reservedMemory: [{numaNode: 0, limits: {memory: 2Gi}}]\nfeatureGates: {CPUManager: false}"
    assert read(text).reported_fields == ("featureGates[CPUManager]",)


def test_everything_wrong_is_reported_at_once_in_order_of_lines() -> None:
    found = refused("""cpuManagerPolicy: static
topologyManagerPolicy: x
cpuCFSQuotaPeriod: 1h
maxPods: -1
cpuManagerRecPeriod: 1s
staticPodPath: x
systemReserved: {gpu: 1, memory: -1}
""")
    assert [line.split(":")[0] for line in found] == ["1", "2", "3", "4", "5", "6", "7", "7"]


@pytest.mark.parametrize(
    ("text", "limit"), [("", 4096), ("podPidsLimit: 100", 100), ("podPidsLimit: -1", -1), ("podPidsLimit: 0", 0)]
)
def test_processes_of_a_pod_have_a_bound_unless_the_configuration_says_otherwise(text: str, limit: int) -> None:
    config = read(text)
    assert (config.pod_pids_limit, config.reported_fields) == (limit, ())
    assert "podPidsLimit: 4194305: must be between -1 and 4194304" in refused("podPidsLimit: 4194305")[0]


@pytest.mark.parametrize(
    ("text", "behavior"),
    [
        ("memorySwap: {}", "NoSwap"),
        ("memorySwap: {swapBehavior: NoSwap}", "NoSwap"),
        ("memorySwap: {swapBehavior: UnlimitedSwap}", "UnlimitedSwap"),
    ],
)
def test_containers_may_use_swap_if_the_configuration_says_so(text: str, behavior: str) -> None:
    config = read(text)
    assert (config.swap_behavior, config.reported_fields, config.notes) == (behavior, (), ())


def test_limited_swap_is_none_with_a_note() -> None:
    config = parse_config(b"memorySwap: {swapBehavior: LimitedSwap}", "config.yaml")
    assert config.swap_behavior == "LimitedSwap"
    (note,) = config.notes
    assert "LimitedSwap means NoSwap here" in note


@pytest.mark.parametrize("field", config_schema.KUBELET_UNUSED)
def test_known_kubelet_fields_are_only_reported(field: str) -> None:
    assert read(f"{field}: {{anything: 1}}\n").reported_fields == (field,)
    assert read(f"{field}:\n").reported_fields == ()


@pytest.mark.parametrize(
    ("address", "noted"),
    [("", False), ("127.0.0.1:9753", False), ("127.9.9.9:1", False), ("[::1]:9753", False), ("localhost:9753", False), ("unix:/run/x", False), ("0.0.0.0:9753", True), ("[::]:9753", True), ("10.0.0.1:80", True), ("node7:80", True)],
)  # fmt: skip
def test_metrics_beyond_loopback_are_allowed_with_a_note(address: str, noted: bool) -> None:
    config = read(f'metricsBindAddress: "{address}"\n')
    assert config.metrics_bind_address == address
    assert bool(config.notes) is noted
    assert all(address in note for note in config.notes)


SINGLE, STATIC = "topologyManagerPolicy: single-numa-node", "cpuManagerPolicy: static\nreservedSystemCPUs: '0'"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("", "topologyManagerPolicy: single-numa-node, and cpuManagerPolicy: static or memoryManagerPolicy: Static"),
        (SINGLE, "cpuManagerPolicy: static or memoryManagerPolicy: Static"),
        (STATIC, "topologyManagerPolicy: single-numa-node"),
        (f"{STATIC}\ntopologyManagerPolicy: restricted", "topologyManagerPolicy: single-numa-node"),
        (f"{SINGLE}\n{STATIC}", None),
        (f"{SINGLE}\nmemoryManagerPolicy: Static\nreservedMemory: [{{numaNode: 0, limits: {{memory: 100Mi}}}}]", None),
    ],
)
def test_an_option_that_can_change_nothing_is_named_and_not_refused(text: str, needed: str | None) -> None:
    option = "topologyManagerPolicyOptions: {prefer-most-allocated-numa-node: '%s'}"
    gates = "featureGates: {TopologyManagerPolicyAlphaOptions: true}"
    config = parse_config("\n".join([text, option % "true", gates]).encode(), "config.yaml")
    note = f"topologyManagerPolicyOptions[prefer-most-allocated-numa-node] has no effect here: it needs {needed}"
    assert config.notes == (() if needed is None else (note,))
    assert parse_config("\n".join([text, option % "false", gates]).encode(), "config.yaml").notes == ()


@pytest.mark.parametrize(
    ("policy", "options", "expected"),
    [
        ("none", "numa-allocation-strategy: least-allocated", ["numa-allocation-strategy", "a topologyManagerPolicy other than none"]),
        ("restricted", "numa-allocation-strategy: least-allocated", []),
        ("none", "numa-allocation-strategy: none", []),
        ("restricted", "numa-score-weights: cpu=2", ["numa-score-weights", "numa-allocation-strategy: least-allocated or most-allocated"]),
        ("restricted", "numa-allocation-strategy: most-allocated, numa-score-weights: 'cpu=2,memory=0'", []),
    ],
)  # fmt: skip
def test_an_allocation_strategy_that_can_change_nothing_is_named(policy: str, options: str, expected: list[str]) -> None:  # fmt: skip
    gates = "featureGates: {TopologyManagerPolicyAlphaOptions: true}"
    text = f"topologyManagerPolicy: {policy}\ntopologyManagerPolicyOptions: {{{options}}}\n{gates}"
    note = "topologyManagerPolicyOptions[{}] has no effect here: it needs {}"
    assert parse_config(text.encode(), "config.yaml").notes == ((note.format(*expected),) if expected else ())


@pytest.mark.parametrize(
    ("key", "text", "needed"),
    [
        (
            "sameNumaNodes",
            "topologyManagerPolicy: single-numa-node",
            "cpuManagerPolicy: static, and memoryManagerPolicy: Static, and topologyManagerPolicy: best-effort or restricted",
        ),
        ("spreadHugePages", STATIC, "memoryManagerPolicy: Static"),
        ("spreadHugePages", "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\nmemoryManagerPolicy: Static", "cpuManagerPolicy: static"),
    ],
)  # fmt: skip
def test_a_preference_for_numa_nodes_that_can_change_nothing_is_named(key: str, text: str, needed: str) -> None:
    config = parse_config(f"{text}\n{key}: true".encode(), "config.yaml")
    assert config.notes == (f"{key} has no effect here: it needs {needed}",)
    placement = config_from_document(JsonValue(config_document(config))).placement
    assert (placement.same_numa_nodes, placement.spread_huge_pages) == (key == "sameNumaNodes", key != "sameNumaNodes")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("0", 0), ("0s", 0), ("10s", 10**10), ("1m30s", 9 * 10**10), ("1.5h", 54 * 10**11), ("100ms", 10**8), ("1us", 1000), ("1µs", 1000), ("2ns", 2), (".5s", 5 * 10**8), ("-1s", -(10**9)), ("+1s", 10**9), ("1h1m1s", 3661 * 10**9), ("0.1ns", 0)],
)  # fmt: skip
def test_durations_are_gos(text: str, nanoseconds: int) -> None:
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "1 s", "1s ", "1d", ".s", "1e3s", "--1s", "1s1", "９s", "9999999999999999999h", "1s" * 100, "-"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(DurationSyntaxError, match="time: invalid duration"):
        parse_duration_ns(text)


def test_a_scenario_is_read_with_its_own_amounts_and_errata() -> None:
    placement = placement_from_scenario(
        {
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "align-by-socket": "false"},
            "numReservedCPUs": 2,
            "topologyManagerPolicy": "restricted",
            "topologyManagerScope": "pod",
            "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "8"},
            "memoryManagerPolicy": "Static",
            "reservedMemory": [
                {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}},
                {"numaNode": 1, "limits": {"memory": "512Mi"}},
            ],
            "featureGates": {"PodLevelResourceManagers": True},
        }
    )
    assert placement == Placement(
        cpu_manager_policy="static",
        cpu_manager_policy_options=(("align-by-socket", "false"), ("full-pcpus-only", "true")),
        reserved_cpu_milli=2000,
        topology_manager_policy="restricted",
        topology_manager_scope="pod",
        topology_manager_policy_options=(("max-allowable-numa-nodes", "8"),),
        memory_manager_policy="Static",
        reserved_memory=(
            ReservedMemory(0, Resources.of({"memory": Quantity.parse("1Gi"), "hugepages-2Mi": Quantity.parse("2Mi")})),
            ReservedMemory(1, amounts(memory="512Mi")),
        ),
        memory_reservation=Resources.of({"memory": Quantity.parse("1536Mi"), "hugepages-2Mi": Quantity.parse("2Mi")}),
        feature_gates=(("PodLevelResourceManagers", True),),
        errata=Errata.KUBELET_1_36,
    )
    assert placement_from_scenario({"reservedCPU": "1500m", "errata": "fixed"}) == Placement(reserved_cpu_milli=1500)
    assert placement_from_scenario({"reservedSystemCPUs": "0-2", "errata": "fixed"}) == Placement(
        reserved_system_cpus=CpuSet.of(0, 1, 2), reserved_cpu_milli=3000
    )
    classes = {"exclusiveCoreClass": "performance", "sharedCoreClass": "efficiency", "errata": "fixed"}
    assert placement_from_scenario(classes) == Placement(
        exclusive_core_class="performance", shared_core_class="efficiency"
    )
    # Texts are not judged here: the managers' refusals are what a simulation is to show.
    assert placement_from_scenario({"cpuManagerPolicy": "x"}).cpu_manager_policy == "x"


def test_a_scenario_of_wrong_types_names_every_field() -> None:
    with pytest.raises(DocumentError) as caught:
        placement_from_scenario(
            {"cpuManagerPolicy": 1, "reservedSystemCPUs": "x", "numReservedCPUs": "2", "errata": "x", "foo": 1}
        )
    assert [finding.field for finding in caught.value.findings] == [
        "errata",
        "numReservedCPUs",
        "reservedSystemCPUs",
        "cpuManagerPolicy",
        "foo",
    ]


FIELDS = (
    "port cpuManagerPolicy reservedSystemCPUs maxPods evictionHard systemReserved featureGates reservedMemory "
    "cpuCFSQuotaPeriod metricsBindAddress cgroupRoot junk"
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["memory.available", "cpu", "numaNode", "limits"]), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from(FIELDS.split()), junk))
def test_any_configuration_is_read_or_refused(document: dict[str, object]) -> None:
    found: tuple[Finding, ...] = ()
    try:
        parse_config(json.dumps(document).encode(), "f")
    except DocumentError as err:
        found = err.findings
    assert all(finding.line for finding in found)


def test_a_hostile_configuration_is_refused_in_bounded_time() -> None:
    began = time.process_time()
    found = refused("".join(f"maxPods{i}: 1\n" for i in range(40_000)))
    assert time.process_time() - began < 20
    assert len(found) == 101


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("AllAlpha: true", {*DEFAULT_GATES}),
        ("AllBeta: false", set()),
        (
            "AllAlpha: true, AllBeta: false, PodLevelResources: true",
            {"PodLevelResources", *(n for n, on in DEFAULT_GATES.items() if not on)},
        ),
        ("PodLevelResourceManagers: false, AllAlpha: true", {*DEFAULT_GATES} - {"PodLevelResourceManagers"}),
        ("AllBeta: false, PodLevelResources: true", {"PodLevelResources"}),
    ],
)
def test_all_gates_of_a_stage_but_those_set_on_their_own(text: str, on: set[str]) -> None:
    config = parse_config(f"featureGates: {{{text}}}".encode(), "config.yaml")
    assert {name for name in DEFAULT_GATES if config.placement.gate(name)} == on
    assert not config.reported_fields


def test_profiles_are_settings_of_cores_and_thresholds_by_name() -> None:
    fast = {
        "idleLatency": "2us",
        "minFrequency": "2400MHz",
        "maxFrequency": "2400MHz",
        "idleSiblings": True,
        "boost": False,
    }
    fast |= {"aslr": False, "transparentHugePages": False, "scheduler": "fifo:10", "nice": -5}
    config = read(f"profiles: {{fast: {json.dumps(fast | {'runThresholds': {'steal': 5}})}}}")
    settings = QuietSettings(
        idle_latency_us=2, min_frequency_mhz=2400, max_frequency_mhz=2400, idle_siblings=True, boost=False
    )
    process = ProcessSettings(aslr=False, transparent_huge_pages=False, scheduler="fifo:10", nice=-5)
    assert config.profiles == (("fast", Profile(settings, process, (("steal", 5),))), *SHIPPED_PROFILES)
    assert config_fields(config)["profiles"] == {"fast": fast | {"runThresholds": {"steal": 5}}}
    assert read("\n".join(config_text(config_fields(config)).splitlines())) == config
    assert read("{}").profiles == SHIPPED_PROFILES
    assert "profiles" not in config_fields(read("{}"))
    assert dict(read("profiles: {quiet: {governor: powersave}}").profiles) == {
        "quiet": Profile(QuietSettings(governor="powersave"))
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{none: {}}", "other than none"),
        ("{A: {}}", "lower-case letters"),
        ("{a: {idleLatency: 5}}", "a time such as 5us"),
        ("{a: {boots: false}}", "did you mean boost?"),
        ("{a: {scheduler: 'fifo:99'}}", "must be batch, or fifo or rr with a priority from 1 to 49"),
        ("{a: {nice: 20}}", "must be between -20 and 19"),
        ("{a: {runThresholds: {sleep: 1}}}", "sleep"),
        ("{a: 3}", "must be an object"),
        ("{" + ", ".join(f"a{n}: {{}}" for n in range(33)) + "}", "more than 32 entries"),
    ],
)
def test_a_profile_that_is_wrong_is_refused(text: str, why: str) -> None:
    (found,) = refused(f"profiles: {text}")
    assert why in found


def test_jobs_have_bounds_and_a_weight_and_users_and_groups_have_their_own() -> None:
    shares = [{"user": "nightly", "maxCPUs": "16", "weight": 1000}, {"group": "students", "maxReservations": 0}]
    config = read(f"jobs: {{group: runners, maxMemory: 1Gi, weight: 50, shares: {json.dumps(shares)}}}")
    first, second = (
        JobShare(user="nightly", max_cpus=Quantity.of(16), weight=1000),
        JobShare(group="students", max_reservations=0),
    )
    bounds = JobBounds("runners", max_memory=Quantity.parse("1Gi"), weight=50, shares=(first, second))
    assert config.jobs == bounds
    assert config_fields(config)["jobs"]["shares"] == shares
    assert read("\n".join(config_text(config_fields(config)).splitlines())) == config
    own = bounds.apply_share(second)
    assert (own.max_memory, own.max_reservations, own.max_per_user, own.weight) == (bounds.max_memory, 0, 10, 50)
    assert bounds.apply_share(first).max_cpus == Quantity.of(16)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{maxCPUs: 1}", "group: is required"),
        ("{group: a, maxCPUs: 0}", "must be more than 0"),
        ("{group: a, weight: 0}", "weight"),
        ("{group: a, weight: 10001}", "weight"),
        ("{group: a, shares: [{weight: 1}]}", "is required, or else group: each share is one user's or one group's"),
        ("{group: a, shares: [{user: b, group: c}]}", 'shares[0].group: "c": must be left out, as user is set'),
        ("{group: a, shares: [{user: b, maxCPU: 1}]}", "did you mean maxCPUs?"),
        ("{group: a, shares: [" + "{user: b}, " * 33 + "]}", "at most 32"),
    ],
)
def test_bounds_of_jobs_that_are_wrong(text: str, why: str) -> None:
    (found,) = refused(f"jobs: {text}")
    assert why in found


def test_thresholds_of_a_clean_run_can_be_changed_one_by_one() -> None:
    config = read("runThresholds: {steal: 50, interrupts: 0}")
    assert config.run_thresholds == (("interrupts", 0), ("steal", 50))
    assert config_fields(config)["runThresholds"] == {"interrupts": 0, "steal": 50}
    assert read("{}").run_thresholds == ()
    assert "runThresholds" not in config_fields(read("{}"))
    (unknown, negative) = refused("runThresholds: {sleep: 1, steal: -1}")
    assert "sleep" in unknown + negative
    assert "steal" in unknown + negative
