"""The interface of a resource manager to everything that treats all of them alike: admission, starts, recovery, the invariants.

A manager is built once from machine and configuration. It has no state: what is promised is in `Promises`, which a call takes, and returns
as they are after it. Managers are called in a fixed order, kubelet's, and none knows the others.
"""

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import Refusal, StartRefused
from nodeagent.core.model.violations import Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints

ResourceHints = tuple[tuple[str, Hints], ...]
"""The hints of each resource; a manager without an opinion has one list that doesn't care."""


class Allocation(Struct, frozen=True):
    """The result of a manager's allocate call."""

    promises: Promises
    deltas: MetricDeltas = ()
    refusal: Refusal | None = None


class ResourceManager(Protocol):
    """A manager of one resource."""

    @property
    def name(self) -> str:
        """Its name in the trace of a decision."""

    # A pod comes

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        """On which NUMA nodes could the container get what it asks for?"""

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        """On which NUMA nodes could the whole pod get it?"""

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        """Promise the container what it asks for, under the hint stored for it."""

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        """Promise it to the pod as a whole, under the hint of its first container, and divide it."""

    def percent_given(self, promises: Promises, node: int) -> int | None:
        """How much of the NUMA node is promised; None: this manager doesn't manage any (prefer-most-allocated-numa-node)."""

    # What a pod holds

    def is_asked(self, container: ContainerDemand) -> bool:
        """Whether the container asks this manager for something."""

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        """Whether the container has what it asks for; for a plain init container only what it doesn't return after it has run."""

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        """Whether the pod as a whole has what it asks for."""

    def place(self, held: PodPromises, name: str) -> NumaSet:
        """The NUMA nodes on which the container has something."""

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        """What kubelet counts when a container already has what it asks for."""

    # A container starts or goes

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        """Take back what the plain init containers before a starting container no longer need."""

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        """Take back what only this container of its pod has."""

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        """Take back what the pod has as a whole but its containers don't."""

    # A start, and what must always hold

    def validated(self, promises: Promises) -> Promises | StartRefused:
        """Judge stored promises against the current machine and configuration; changes that need no decision are applied."""

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        """The values of its metrics after startup."""

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        """Its gauges, computed from the state."""

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        """Return the invariants that the promises break."""

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        """Return the promises that the machine can't keep at present."""
