"""Kinds of disturbances of a run, with their thresholds, and the judgement of measured quantities.

A quantity disturbs the run if its rate is above the threshold and its amount is large enough to be measured reliably. The size of a
disturbance is its rate divided by the threshold, so that all kinds can be compared.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

PER_MILLE, PER_SECOND = "perMille", "perSecond"
MICROSECONDS, BYTES, TIMES, KILOHERTZ = "microseconds", "bytes", "times", "kilohertz"


class MeasuredRate(Struct, frozen=True):
    """Measured quantity of one kind of disturbance, such as the time of other tasks on a run's CPUs."""

    rate: int
    """Share in thousandths, number per second and CPU, or number of times (see `Threshold.unit`)."""
    amount: int
    """Absolute amount, in the unit `Threshold.amount_unit`."""
    source: str = ""
    """Name of the largest cause of the disturbance. Empty means that the cause is unknown."""


class Threshold(Struct, frozen=True):
    unit: str
    """Unit of the rate: `perMille`, `perSecond` or `times`."""
    most: int
    """Largest rate that doesn't count as a disturbance."""
    amount_unit: str
    least: int
    """Smallest amount that can count as a disturbance. The counters aren't precise enough for smaller amounts."""
    remedy: str
    """Advice on how to avoid the disturbance."""
    effects: tuple[str, ...] = ()
    """Kinds of disturbances that this kind causes. Reports list these kinds after this kind."""


THRESHOLDS: Mapping[str, Threshold] = MappingProxyType(
    {
        "other-tasks": Threshold(
            PER_MILLE,
            10,
            MICROSECONDS,
            2_000,
            "request whole CPUs (`--cpus 2`), and keep host processes off these CPUs: `hostIsolation` in the configuration",
        ),
        "sibling": Threshold(
            PER_MILLE,
            10,
            MICROSECONDS,
            2_000,
            "request whole cores: the CPU manager's option full-pcpus-only, and an even number of `--cpus`",
        ),
        "remote-memory": Threshold(
            PER_MILLE,
            50,
            BYTES,
            8 * 2**20,
            "bind the job to one NUMA node: `--numa N`, or memoryManagerPolicy Static",
        ),
        "throttling": Threshold(
            PER_MILLE,
            1,
            MICROSECONDS,
            1_000,
            "request more `--cpus`, or a whole number, which has no quota; remove the quota of a cgroup above the job",
        ),
        "thermal-throttling": Threshold(
            TIMES,
            0,
            TIMES,
            1,
            "cool the machine, lower its load, or fix a frequency that it can hold",
            effects=("frequency-limit", "frequency"),
        ),
        "steal": Threshold(
            PER_MILLE,
            10,
            MICROSECONDS,
            20_000,
            "run the job on bare metal, or pin the virtual CPUs on the host",
        ),
        "interrupts": Threshold(
            PER_SECOND,
            100,
            TIMES,
            50,
            "move the interrupts to other CPUs: interruptIsolation in the configuration",
        ),
        "frequency": Threshold(
            PER_MILLE,
            100,
            KILOHERTZ,
            1,
            "fix the frequency: governor performance, and no turbo (see `nodeagent check --for benchmark`)",
        ),
        "frequency-limit": Threshold(
            PER_MILLE,
            10,
            KILOHERTZ,
            1,
            "find out what lowers the frequency limit: a thermal daemon, a power profile, or the firmware",
            effects=("frequency",),
        ),
        "memory-pressure": Threshold(
            PER_MILLE,
            10,
            MICROSECONDS,
            2_000,
            "request more `--memory`",
        ),
    }
)
"""Threshold of each kind of disturbance, by the kind's stable name."""

ESSENTIAL = "other-tasks"
"""Kind that must be measured for a verdict."""


class Disturbance(Struct, frozen=True):
    name: str
    quantity: MeasuredRate
    threshold: Threshold

    @property
    def size(self) -> float:
        """Rate as a multiple of the threshold. A threshold of 0 is treated as 1."""
        return self.quantity.rate / max(1, self.threshold.most)


def change_thresholds(most: Mapping[str, int]) -> dict[str, Threshold]:
    """Return all thresholds, with the given values as the largest rates of a clean run. Unknown names are ignored."""
    return {name: replace(one, most=most.get(name, one.most)) for name, one in THRESHOLDS.items()}


def find_disturbances(
    measured: Mapping[str, MeasuredRate | None], thresholds: Mapping[str, Threshold] = THRESHOLDS
) -> tuple[Disturbance, ...]:
    """Find the quantities that disturbed the run, the largest first, with causes before their effects.

    Args:
        measured: quantities by the names of `THRESHOLDS`. None means unknown.
        thresholds: thresholds by the same names.
    """
    found = [
        Disturbance(name, quantity, thresholds[name])
        for name, quantity in measured.items()
        if quantity is not None and quantity.amount >= thresholds[name].least and quantity.rate > thresholds[name].most
    ]
    ranks = rank_kinds({one.name: one.size for one in found})
    return tuple(sorted(found, key=lambda one: ranks[one.name]))


def rank_kinds(sizes: Mapping[str, float]) -> dict[str, tuple[float, int, str]]:
    """Return a sort key for each kind of disturbance. A cause ranks as high as its largest effect, and before all its effects."""
    return {
        name: (-max(sizes.get(one, 0) for one in (name, *effects)), -len(effects), name)
        for name in sizes
        for effects in (THRESHOLDS[name].effects,)
    }


def find_verdict(measured: Mapping[str, MeasuredRate | None], thresholds: Mapping[str, Threshold] = THRESHOLDS) -> str:
    """Return the verdict: `clean`, `disturbed`, or `unknown` if no disturbance was found but the time of other tasks couldn't
    be measured.
    """
    if find_disturbances(measured, thresholds):
        return "disturbed"
    return "unknown" if measured.get(ESSENTIAL) is None else "clean"
