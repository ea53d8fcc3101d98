"""Quiet settings: settings of a pod's cores that reduce disturbances while the pod runs. Named sets of these settings are the node's
profiles.
"""

from msgspec import Struct
from msgspec.structs import asdict, replace

DEFAULT_PROFILE = "quiet"
"""Name of the profile that nodes have by default."""


class QuietSettings(Struct, frozen=True):
    """Quiet settings for a pod's cores. None in a field means that the setting stays unchanged."""

    idle_latency_us: int | None = None
    """Largest permitted exit latency of idle states (cpuidle), in microseconds. Deeper idle states are disabled."""
    governor: str | None = None
    """Name of the cpufreq governor."""
    min_frequency_mhz: int | None = None
    max_frequency_mhz: int | None = None
    idle_siblings: bool | None = None
    """Whether only one thread of each core runs the pod, and the sibling threads stay idle. False has the same effect as None, but
    overrides a profile's True.
    """
    boost: bool | None = None
    """Whether the cores may exceed their base frequency (turbo boost). True has the same effect as None, but overrides a profile's
    False.
    """

    def overridden_by(self, others: "QuietSettings") -> "QuietSettings":
        """Return a copy in which each setting that `others` contains (a value other than None) replaces the present one."""
        return replace(self, **{name: value for name, value in asdict(others).items() if value is not None})


class QuietRequest(Struct, frozen=True):
    """A pod's request for quiet settings: a profile, and the pod's own settings, which take precedence over those of the profile."""

    profile: str = ""
    """Name of the requested profile. Empty means that the pod requests no profile."""
    settings: QuietSettings = QuietSettings()

    def resolve(self, profiles: "tuple[tuple[str, Profile], ...]") -> QuietSettings | None:
        """Return the profile's settings, overridden by the pod's own. None means that the node doesn't have the requested profile."""
        if not self.profile:
            return self.settings
        profile = dict(profiles).get(self.profile)
        return None if profile is None else profile.settings.overridden_by(self.settings)


class ProcessSettings(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Settings of a process and its children. None in a field means that the process inherits the setting from its parent. Serialized
    fields are named as in profiles.
    """

    aslr: bool | None = None
    """Whether the kernel randomizes the memory layout of each process (address space layout randomization). True has the same effect as
    None.
    """
    transparent_huge_pages: bool | None = None
    """Whether the process may use transparent huge pages. True has the same effect as None."""
    scheduler: str | None = None
    """Scheduling policy, with a priority after a colon for real-time policies, as in `fifo:10`."""
    nice: int | None = None

    def overridden_by(self, others: "ProcessSettings") -> "ProcessSettings":
        """Return a copy in which each setting that `others` contains (a value other than None) replaces the present one."""
        return replace(self, **{name: value for name, value in asdict(others).items() if value is not None})

    @property
    def is_of_real_time(self) -> bool:
        return self.scheduler is not None and self.scheduler.startswith(("fifo:", "rr:"))


class Profile(Struct, frozen=True):
    settings: QuietSettings = QuietSettings()
    process: ProcessSettings = ProcessSettings()
    """Process settings for jobs, and for containers that have a command."""
    run_thresholds: tuple[tuple[str, int], ...] = ()
    """Disturbance thresholds of the profile, by kind of disturbance. A rate up to the threshold doesn't count as a disturbance. For kinds
    that aren't listed, the node's threshold applies.
    """


SHIPPED_PROFILES = (
    (DEFAULT_PROFILE, Profile(QuietSettings(idle_latency_us=5, governor="performance", idle_siblings=True))),
)
"""Profiles of a node whose configuration defines none. The limit of 5 microseconds permits only the shallowest idle states."""
