"""Kinds of problems that need a user's attention. Each kind has an explanation, a solution, and an alert.

The metric `nodeagent_problems` counts the problems of each kind. docs/reference/problems.md is generated from this module.
"""

from enum import StrEnum

from msgspec import Struct


class ProblemKind(StrEnum):
    """Kind of problem, as in the label of the metric `nodeagent_problems`."""

    SYNC = "sync"
    CONFIGURATION_REFUSED = "configuration_refused"
    CONFIGURATION_CHANGED = "configuration_changed"
    STATE = "state"
    LAUNCHER = "launcher"
    CGROUP = "cgroup"
    SERVICE = "service"
    MANIFEST = "manifest"
    PROMISE = "promise"
    ORPHAN = "orphan"
    OTHER = "other"
    REFUSED = "refused"
    STARVED = "starved"
    DEGRADED = "degraded"
    CRASH_LOOP = "crash_loop"


class Explained(Struct, frozen=True):
    """Explanation of one kind of problem, written for users."""

    what: str
    mended_by: str
    alert: str = "NodeagentNeedsAttention"
    """Name of the alert in contrib/prometheus that reports this kind of problem."""


EXPLAINED = {
    ProblemKind.SYNC: Explained(
        "the agent could not finish its last sync",
        "the other problems say why; the agent tries again by itself",
    ),
    ProblemKind.CONFIGURATION_REFUSED: Explained(
        "the configuration file can't be used; the agent uses the last valid configuration",
        "correct the file, then `nodeagent config reload`, which reports every error that is left",
        "NodeagentConfigRefused",
    ),
    ProblemKind.CONFIGURATION_CHANGED: Explained(
        "the configuration file was changed, and is not in use",
        "`nodeagent config reload`, or undo the change",
    ),
    ProblemKind.STATE: Explained(
        "a file of the state directory can't be written: nothing is allocated and nothing is released",
        "make room, or mount the file system read-write; the agent tries again by itself",
    ),
    ProblemKind.LAUNCHER: Explained(
        "the launcher doesn't answer: containers are neither started nor restarted",
        "`systemctl start nodeagent-pods nodeagent-launcher`; if they run, `systemctl reload nodeagent-launcher` makes the socket again",
        "NodeagentLauncherDown",
    ),
    ProblemKind.CGROUP: Explained(
        "a cgroup can't be read or written, so a pod may not have what it was allocated",
        "the problem names the file and the kernel's answer; the agent tries again by itself",
    ),
    ProblemKind.SERVICE: Explained(
        "a socket, a container runtime or a plugin is not served",
        "the problem names the socket, runtime or plugin, and the next step",
    ),
    ProblemKind.MANIFEST: Explained(
        "a manifest is invalid, unreadable or a duplicate, or its change was refused",
        "correct the manifest; the agent reads it again by itself",
        "NodeagentManifestProblems",
    ),
    ProblemKind.PROMISE: Explained(
        "the machine has fewer resources than are allocated, or the pod that holds them is unknown",
        "bring the missing CPUs or memory back, or end the pod",
    ),
    ProblemKind.ORPHAN: Explained(
        "processes run in cgroups without a pod",
        "`nodeagent inspect` prints the command that ends them",
    ),
    ProblemKind.OTHER: Explained("any other problem", "the problem names the next step"),
    ProblemKind.REFUSED: Explained(
        "a pod is refused",
        "change its manifest, or make room and run `nodeagent retry POD`; `nodeagent explain POD` says what would admit it",
    ),
    ProblemKind.STARVED: Explained(
        "no CPU is left for a container, so it is frozen or not started",
        "end a pod with exclusive CPUs, or bring offline CPUs back",
        "NodeagentStarvedContainers",
    ),
    ProblemKind.DEGRADED: Explained(
        "exclusive CPUs of a container are offline",
        "bring the CPUs online: `echo 1 >/sys/devices/system/cpu/cpuN/online`",
        "NodeagentDegradedContainers",
    ),
    ProblemKind.CRASH_LOOP: Explained(
        "a container keeps exiting, and waits for its next start",
        "`journalctl -t POD/CONTAINER` has its output; correct the program or its manifest",
    ),
}
