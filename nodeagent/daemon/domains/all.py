"""All domains of a node as one: the tuple, and what each stage of a turn does with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import Domain, DomainInput, DomainView, TakenBack
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.jobs.domain import JobsDomain
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.domains.own.cgroups import OwnDomain
from nodeagent.daemon.domains.source_reader import SourceReader
from nodeagent.daemon.domains.systemd.unit_cgroups import Systemd
from nodeagent.daemon.domains.systemd.units import SystemdDomain
from nodeagent.edge.cgroups.cgroupfs import CgroupTree

if TYPE_CHECKING:
    from nodeagent.daemon.domains.runtime.containers import RuntimeDomain


def domains_of(
    config: Config,
    tree: CgroupTree,
    *,
    manifests: SourceReader | None = None,
    jobs: Jobs | None = None,
    runtime: "RuntimeDomain | None" = None,
    systemd: Systemd | None = None,
) -> tuple[Domain, ...]:
    """Return the domains of a node, in the order in which their pods' manifests count.

    Args:
        config: the agent's.
        tree: for the cgroups.
        manifests: the source of the agent's own pods. None means that nothing new is admitted.
        jobs: what there is. None means that no job is asked for.
        runtime: None means that no container runtime is served.
        systemd: None means systemd by its command.
    """
    return (
        OwnDomain(tree, manifests),
        SystemdDomain(config, tree, systemd),
        *(() if jobs is None else (JobsDomain(jobs, tree),)),
        *(() if runtime is None else (runtime,)),
    )


def observe_all(domains: Sequence[Domain], look: DomainInput) -> DomainView:
    """Observe each domain, as one value.

    Raises:
        CgroupError: a cgroup can't be read.
    """
    seen = [domain.observe(look) for domain in domains]
    return DomainView(
        {path: there for one in seen for path, there in one.cgroups.items()},
        frozenset[str]().union(*(one.down for one in seen)),
        is_all_told=all(one.is_all_told for one in seen),
        problems=tuple(problem for one in seen for problem in one.problems),
        retries=any(one.retries for one in seen),
        places={name: place for one in seen for name, place in one.places.items()},
    )


def decide_all(domains: Sequence[Domain], decided: Turn, world: World) -> Turn:
    """Decide on what each domain has been asked, one after the other."""
    for domain in domains:
        decided = domain.decide(decided, world)
    return decided


def withdraw_all(domains: Sequence[Domain], why: str) -> None:
    """Answer those that wait in any domain that nothing was decided."""
    for domain in domains:
        domain.withdraw(why)


def take_back_all(domains: Sequence[Domain], state: NodeState) -> TakenBack:
    """Take back devices in each domain, as one value."""
    taken = [domain.take_back(state) for domain in domains]
    in_use = {path: user for one in taken for path, user in one.files_in_use.items()}
    return TakenBack(in_use, tuple(problem for one in taken for problem in one.problems))


class DomainWriter(Struct, frozen=True):
    """Carries out the changes of a plan, each by the domain that owns the cgroup."""

    domains: tuple[Domain, ...]

    def apply(self, change: Change) -> None:
        """Carry out one change.

        Raises:
            CgroupError: it could not be done, or has not the effect that it should have.
        """
        next(domain for domain in self.domains if domain.owns(change.path)).apply(change)
