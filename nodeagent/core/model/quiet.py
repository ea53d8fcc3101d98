"""Quiet settings of a pod's cores while the pod runs, and the named profiles of a node."""

from msgspec import Struct
from msgspec.structs import asdict, replace

DEFAULT_PROFILE = "quiet"
"""Name of the profile that every node has."""


class QuietSettings(Struct, frozen=True):
    """Quiet settings of cores. A setting of None stays unchanged."""

    idle_latency_us: int | None = None
    """Longest allowed time for leaving an idle state, in microseconds."""
    governor: str | None = None
    """Name of the frequency governor (cpufreq)."""
    min_frequency_mhz: int | None = None
    max_frequency_mhz: int | None = None
    idle_siblings: bool | None = None
    """Whether the pod runs only on one thread of each of its cores. False has the same effect as None, but overrides a profile's True."""
    boost: bool | None = None
    """Whether the cores may exceed their nominal frequency. True has the same effect as None, but overrides a profile's False."""

    def overridden_by(self, others: "QuietSettings") -> "QuietSettings":
        """Return these settings, overridden by those settings of `others` that aren't None."""
        return replace(self, **{name: value for name, value in asdict(others).items() if value is not None})


class QuietRequest(Struct, frozen=True):
    """A pod's request: a profile, and settings that take precedence over the profile's settings."""

    profile: str = ""
    """Name of the profile. Empty means that no profile is requested."""
    settings: QuietSettings = QuietSettings()

    def resolve(self, profiles: "tuple[tuple[str, Profile], ...]") -> QuietSettings | None:
        """Return the profile's settings, overridden by the pod's own settings. None means that the profile doesn't exist."""
        if not self.profile:
            return self.settings
        profile = dict(profiles).get(self.profile)
        return None if profile is None else profile.settings.overridden_by(self.settings)


class ProcessSettings(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Settings of a process and its children, by their names in a profile. None means that the process inherits the setting from the
    process that starts it.
    """

    aslr: bool | None = None
    """Whether memory addresses differ from run to run (address space layout randomization). True has the same effect as None."""
    transparent_huge_pages: bool | None = None
    """Whether memory may consist of transparent huge pages. True has the same effect as None."""
    scheduler: str | None = None
    """Scheduling policy. A priority may follow after a colon, as in `fifo:10`."""
    nice: int | None = None

    def overridden_by(self, others: "ProcessSettings") -> "ProcessSettings":
        """Return these settings, overridden by those settings of `others` that aren't None."""
        return replace(self, **{name: value for name, value in asdict(others).items() if value is not None})

    @property
    def is_of_real_time(self) -> bool:
        return self.scheduler is not None and self.scheduler.startswith(("fifo:", "rr:"))


class Profile(Struct, frozen=True):
    settings: QuietSettings = QuietSettings()
    process: ProcessSettings = ProcessSettings()
    """Settings of the processes of jobs and of containers with a command."""
    run_thresholds: tuple[tuple[str, int], ...] = ()
    """Largest rates that don't count as a disturbance, by kind of disturbance. Only rates that differ from the node's rates are listed."""


SHIPPED_PROFILES = (
    (DEFAULT_PROFILE, Profile(QuietSettings(idle_latency_us=5, governor="performance", idle_siblings=True))),
)
"""Profiles of a node whose configuration defines none. With 5 microseconds, only the lightest idle states are allowed."""
