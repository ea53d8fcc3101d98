"""Creation of all domains of a node, and functions that call one method on every domain."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DeviceWithdrawal, Domain, DomainView
from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.config import Config
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.jobs.domain import JobsDomain, TellTerminal
from nodeagent.daemon.domains.jobs.jobs import Jobs
from nodeagent.daemon.domains.own.cgroups import OwnDomain, SourceReader
from nodeagent.daemon.domains.systemd.unit_cgroups import Systemd
from nodeagent.daemon.domains.systemd.units import SystemdDomain
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree

if TYPE_CHECKING:
    from nodeagent.daemon.domains.runtime.containers import RuntimeDomain


def make_domains(
    config: Config,
    tree: CgroupTree,
    *,
    readers: Sequence[SourceReader] = (),
    jobs: Jobs | None = None,
    runtime: "RuntimeDomain | None" = None,
    systemd: Systemd | None = None,
    tell: TellTerminal = lambda *_: None,
) -> tuple[Domain, ...]:
    """Return the domains of a node, in the order in which their pods are admitted.

    Args:
        config: the configuration.
        tree: the node's cgroups.
        readers: readers of the agent's own pods. Without readers, the agent admits no new pods of its own.
        jobs: the source of jobs. None means that the node accepts no jobs.
        runtime: the domain of a container runtime, if the node has one.
        systemd: the connection to systemd. None means that the command `systemctl` is run instead.
        tell: function that writes a line to a user's terminal.
    """
    return (
        OwnDomain(tree, readers),
        SystemdDomain(config, tree, systemd),
        *(() if jobs is None else (JobsDomain(jobs, tree.processes, str(tree.root), tell),)),
        *(() if runtime is None else (runtime,)),
    )


def merge_views(views: Sequence[DomainView]) -> DomainView:
    """Merge the observations of all domains."""
    cgroups = dict[str, ObservedCgroup]()
    for view in views:
        cgroups.update(view.cgroups)
    return DomainView(
        cgroups,
        frozenset[str]().union(*(view.inactive_units for view in views)),
        has_reported_all=all(view.has_reported_all for view in views),
        problems=tuple(problem for view in views for problem in view.problems),
        retries=any(view.retries for view in views),
        places={name: place for view in views for name, place in view.places.items()},
        strays=frozenset[str]().union(*(view.strays for view in views)),
    )


def decide_all(domains: Sequence[Domain], decided: Turn, world: World) -> Turn:
    """Let each domain decide on the requests that it has received, one domain after the other. Return the turn with their decisions."""
    for domain in domains:
        decided = domain.decide(decided, world)
    return decided


def withdraw_all(domains: Sequence[Domain], why: str) -> None:
    """Tell every domain that the turn's decisions are void, because they couldn't be saved or made. Each domain then passes the reason
    `why` to its waiting callers.
    """
    for domain in domains:
        domain.withdraw(why)


def take_back_all(domains: Sequence[Domain], state: NodeState) -> DeviceWithdrawal:
    """Let each domain withdraw released devices from its processes, and merge the results."""
    results = [domain.take_back(state) for domain in domains]
    in_use = {path: user for result in results for path, user in result.files_in_use.items()}
    return DeviceWithdrawal(in_use, tuple(problem for result in results for problem in result.problems))


class DomainWriter(Struct, frozen=True):
    """Writer that passes each change of a plan to the domain that owns the cgroup."""

    domains: tuple[Domain, ...]

    def apply(self, change: Change) -> None:
        """Let the domain that owns the cgroup make one change.

        Raises:
            CgroupError: the change failed, or may not have taken effect.
        """
        next(domain for domain in self.domains if domain.owns(change.path)).apply(change)
