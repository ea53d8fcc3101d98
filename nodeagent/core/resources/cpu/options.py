"""Options of the static CPU policy: their names, maturity and checks, and the pairs that exclude each other."""

from msgspec import Struct

from nodeagent.core.model.config import Placement
from nodeagent.core.model.go_text import quote_as_go
from nodeagent.core.model.policy_options import parse_boolean
from nodeagent.core.model.refusals import StartRefused

_FIELD = "cpuManagerPolicyOptions"
_BY_SOCKET = "align-by-socket"
_ALPHA, _BETA, _STABLE = "Alpha", "Beta", "stable"
MATURITY = {
    "full-pcpus-only": _STABLE,
    "strict-cpu-reservation": _STABLE,
    "prefer-align-cpus-by-uncorecache": _STABLE,
    "distribute-cpus-across-numa": _BETA,
    _BY_SOCKET: _ALPHA,
    "distribute-cpus-across-cores": _ALPHA,
}
"""Maturity of each option. Alpha and Beta options need a feature gate."""
OPTIONS = tuple(MATURITY)
EXCLUSIONS = (
    ("full-pcpus-only", "distribute-cpus-across-cores"),
    ("distribute-cpus-across-numa", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)
"""Pairs of options that can't be used together."""


class CpuOptions(Struct, frozen=True):
    full_pcpus_only: bool = False
    strict_cpu_reservation: bool = False
    prefer_align_cpus_by_uncorecache: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False


def judge_cpu_options(placement: Placement) -> tuple[CpuOptions, tuple[StartRefused, ...]]:
    """Check the configured options, as far as this is possible without a machine.

    Returns:
        The valid options, and the errors of the others in kubelet's order.
    """
    chosen: dict[str, bool] = {}
    refused: list[StartRefused] = []
    for option, text in sorted(placement.cpu_manager_policy_options):
        maturity = MATURITY.get(option)
        if maturity is None:
            refused.append(
                StartRefused(
                    f"unknown CPU Manager Policy option: {quote_as_go(option)}",
                    _FIELD,
                    entry=option,
                    allowed=f"must be one of {', '.join(OPTIONS)}",
                )
            )
            continue
        gate = f"CPUManagerPolicy{maturity}Options"
        if maturity != _STABLE and not placement.gate(gate):
            refused.append(
                StartRefused(
                    f'CPU Manager Policy {maturity}-level Options not enabled, but option "{option}" provided',
                    _FIELD,
                    entry=option,
                    rests_on=("featureGates",),
                    allowed=f"needs {gate}: true in featureGates",
                )
            )
        value = parse_boolean(option, text, _FIELD)
        if isinstance(value, StartRefused):
            refused.append(value)
        else:
            chosen[option] = value
    for first, second in EXCLUSIONS:
        if chosen.get(first) and chosen.get(second):
            refused.append(
                StartRefused(
                    f"static policy options {first} and {second} can not be used at the same time", _FIELD, entry=second
                )
            )
    if chosen.get(_BY_SOCKET) and placement.topology_manager_policy == "single-numa-node":
        # the spelling of this message is kubelet's
        refused.append(
            StartRefused(
                "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option",
                _FIELD,
                entry=_BY_SOCKET,
            )
        )
    return CpuOptions(**{option.replace("-", "_"): value for option, value in chosen.items()}), tuple(refused)


def misfits(options: CpuOptions, *, socket_count: int, numa_count: int) -> tuple[StartRefused, ...]:
    """Return an error for each option that can't be used on this machine.

    Args:
        options: the configured options.
        socket_count: number of the machine's sockets, as kubelet counts them.
        numa_count: number of NUMA nodes with CPUs.
    """
    if not options.align_by_socket or socket_count <= numa_count:
        return ()
    return (
        StartRefused(
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA",
            _FIELD,
            entry=_BY_SOCKET,
        ),
    )
