"""Kinds of disturbances of a run, their thresholds, and the verdict on measured values.

A measured value counts as a disturbance if its rate exceeds the threshold and its amount is large enough for a reliable measurement. The
size of a disturbance is its rate divided by the threshold, so that different kinds can be compared.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

PER_MILLE, PER_SECOND = "perMille", "perSecond"
MICROSECONDS, BYTES, TIMES, KILOHERTZ = "microseconds", "bytes", "times", "kilohertz"


class MeasuredRate(Struct, frozen=True):
    """Measured value for one kind of disturbance, such as the time that other tasks took on the run's CPUs."""

    rate: int
    """Rate of the disturbance, in the unit `Threshold.unit`: thousandths of the run's time, number per second and CPU, or number
    of times.
    """
    amount: int
    """Total amount during the run, in the unit `Threshold.amount_unit`."""
    source: str = ""
    """Name of the largest cause, such as another task. Empty means that the cause is unknown."""


class Threshold(Struct, frozen=True):
    unit: str
    """Unit of the rate: `perMille`, `perSecond` or `times`."""
    most: int
    """Highest rate that isn't a disturbance."""
    amount_unit: str
    least: int
    """Smallest amount that can be a disturbance. The kernel's counters aren't precise enough for smaller amounts."""
    remedy: str
    """Advice for users on how to avoid the disturbance."""
    effects: tuple[str, ...] = ()
    """Other kinds of disturbances that this kind causes. Reports list them after this kind."""


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
"""Threshold of each kind of disturbance. The names of the kinds don't change between versions."""

ESSENTIAL = "other-tasks"
"""Kind of disturbance without whose measurement a run can't be judged `clean`."""


class Disturbance(Struct, frozen=True):
    name: str
    quantity: MeasuredRate
    threshold: Threshold

    @property
    def size(self) -> float:
        """Return the rate as a multiple of the threshold. A threshold of 0 counts as 1."""
        return self.quantity.rate / max(1, self.threshold.most)


def change_thresholds(most: Mapping[str, int]) -> dict[str, Threshold]:
    """Return all thresholds with some limits replaced. `most` contains the new highest rates of an undisturbed run by kind, and unknown
    kinds are ignored.
    """
    return {name: replace(one, most=most.get(name, one.most)) for name, one in THRESHOLDS.items()}


def find_disturbances(
    measured: Mapping[str, MeasuredRate | None], thresholds: Mapping[str, Threshold] = THRESHOLDS
) -> tuple[Disturbance, ...]:
    """Return the disturbances of a run, the largest first. A disturbance that causes others comes before them.

    Args:
        measured: the measured values by kind, as in `THRESHOLDS`. None means that the value could not be measured.
        thresholds: the threshold of each kind.
    """
    found = [
        Disturbance(name, quantity, thresholds[name])
        for name, quantity in measured.items()
        if quantity is not None and quantity.amount >= thresholds[name].least and quantity.rate > thresholds[name].most
    ]
    ranks = rank_kinds({one.name: one.size for one in found})
    return tuple(sorted(found, key=lambda one: ranks[one.name]))


def rank_kinds(sizes: Mapping[str, float]) -> dict[str, tuple[float, int, str]]:
    """Return a sort key for each kind of disturbance. A kind that causes others ranks as high as the largest of them, and comes before
    them.
    """
    return {
        name: (-max(sizes.get(one, 0) for one in (name, *effects)), -len(effects), name)
        for name in sizes
        for effects in (THRESHOLDS[name].effects,)
    }


def find_verdict(measured: Mapping[str, MeasuredRate | None], thresholds: Mapping[str, Threshold] = THRESHOLDS) -> str:
    """Return the verdict on a run: `disturbed`, `clean`, or `unknown`. It is unknown if no disturbance was found, but the time of other
    tasks could not be measured.
    """
    if find_disturbances(measured, thresholds):
        return "disturbed"
    return "unknown" if measured.get(ESSENTIAL) is None else "clean"
