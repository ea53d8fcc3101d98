"""Quiet cores: kernel settings, such as a fixed frequency, that a pod requests for its cores. They are in effect while the pod runs."""

import operator
from collections.abc import Container, Iterator, Mapping
from functools import reduce

from msgspec import Struct, field

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.config import Config
from nodeagent.core.model.derived import Derived
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.quiet import QuietSettings
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import CpuHoldings

BOOST_FILES = ("cpufreq/boost", "intel_pstate/no_turbo")
"""Kernel files that permit or forbid all CPUs to exceed their nominal frequency (boost). A machine has at most one of them."""
_OFF = {"cpufreq/boost": "0", "intel_pstate/no_turbo": "1"}


def list_quiet_settings(
    topology: Topology, exclusive: CpuSet, settings: QuietSettings, *, machine_wide_boost: bool = False
) -> dict[Setting, str]:
    """Return the settings for all CPUs of the cores of exclusive CPUs. Sibling threads get the same settings, because a core has only one
    idle state and frequency.

    Args:
        topology: the machine.
        exclusive: the exclusive CPUs of a container.
        settings: the settings that the pod requests.
        machine_wide_boost: whether boost may be switched off for all CPUs of the machine.
    """
    cores = {topology.cpu[cpu].core for cpu in exclusive if cpu in topology.cpu}
    values = dict(_format_values(settings))
    found = {
        Setting(kind, str(cpu)): value
        for core in cores
        for cpu in topology.cores[core]
        for kind, value in values.items()
    }
    if machine_wide_boost and SettingKind.BOOST in values:
        found = {setting: value for setting, value in found.items() if setting.kind is not SettingKind.BOOST}
        found |= {Setting(SettingKind.MACHINE_BOOST, file): _OFF[file] for file in BOOST_FILES if cores}
    return found


def _format_values(settings: QuietSettings) -> Iterator[tuple[SettingKind, str]]:
    """Yield each requested kind of setting, with its value as the kernel's text."""
    if settings.idle_latency_us is not None:
        yield SettingKind.IDLE_LATENCY, str(settings.idle_latency_us)
    if settings.governor is not None:
        yield SettingKind.GOVERNOR, settings.governor
    if settings.min_frequency_mhz is not None:
        yield SettingKind.MIN_FREQUENCY, f"{settings.min_frequency_mhz}000"
    if settings.max_frequency_mhz is not None:
        yield SettingKind.MAX_FREQUENCY, f"{settings.max_frequency_mhz}000"
    if settings.boost is False:
        yield SettingKind.BOOST, "0"


class QuietCores(Struct, frozen=True):
    """Settings that all quiet pods together request, kept from turn to turn."""

    of_pods: Derived[tuple[Pod, PodPromises], Mapping[Setting, str]] = Derived()
    """Requested settings of each pod, by pod UID, with the inputs from which they were derived."""
    values: Mapping[Setting, str] = field(default_factory=dict)
    unknown: tuple[tuple[str, str], ...] = ()
    """Names of pods that request a profile which the configuration doesn't define, each with the profile's name. For these pods, no
    settings are applied.
    """

    def follow(self, state: NodeState, topology: Topology, config: Config) -> "QuietCores":
        """Return the settings that pods request in this state. The settings of unchanged pods are reused from `self`."""
        pods = [(e.pod.uid, e.pod) for e in state.entries if e.pod.quiet is not None and e.is_active]
        common = (topology, config.profiles, config.machine_wide_boost)

        def make(inputs: tuple[Pod, PodPromises]) -> Mapping[Setting, str]:
            pod, held = inputs
            settings = None if pod.quiet is None else pod.quiet.resolve(config.profiles)
            if settings is None:
                return {}
            cpus = reduce(operator.or_, (own for _, own in held.of(CpuHoldings).cpus), CpuSet())
            return list_quiet_settings(topology, cpus, settings, machine_wide_boost=config.machine_wide_boost)

        of_pods = self.of_pods.derive(common, pods, lambda pod: (pod, state.promises.of_pod(pod.uid)), make)
        if of_pods == self.of_pods:
            return self
        profiles = dict(config.profiles)
        return QuietCores(
            of_pods,
            {setting: value for values in of_pods.by_key().values() for setting, value in values.items()},
            tuple(
                (pod.full_name, pod.quiet.profile)
                for _, pod in pods
                if pod.quiet is not None and pod.quiet.profile and pod.quiet.profile not in profiles
            ),
        )


def select_boost_file(requested: Mapping[Setting, str], observed: Container[Setting]) -> dict[Setting, str]:
    """Leave out the settings for boost that this machine doesn't have. If it has none of them, keep the first one, so that the missing
    setting is reported.
    """
    absent = [s for s in requested if s.kind is SettingKind.MACHINE_BOOST and s not in observed]
    left_out = set(absent if len(absent) < len(BOOST_FILES) else absent[1:])
    return {setting: value for setting, value in requested.items() if setting not in left_out}
