"""What a pod with CPUs of its own costs the pods that share: writes of cgroup files and of placement files, counted."""

from collections import Counter
from pathlib import Path

import pytest

from nodeagent.core.cgroups.write_order import SetAttribute
from nodeagent.core.model.cgroup import Attribute
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.placement_files import PlacementFiles
from tests.daemon.test_load import EXCLUSIVE, MACHINE_64, Quick, agent_of, directories, live, manifest, running
from tests.support.world import node

POOL_WRITES = Counter(
    {
        ("shared", Attribute.CPUSET_CPUS): 1,
        ("shared/pool", Attribute.CPUSET_CPUS): 1,
        ("shared/pool", Attribute.FALLBACK_CPUS): 1,
    }
)


def written_for_one_more(
    base: Path, monkeypatch: pytest.MonkeyPatch, sharing: int
) -> tuple[Counter[tuple[str, Attribute]], list[str]]:
    """Return the writes to cgroups that aren't the new pod's, and the placement files written, beside so many pods that share."""
    base.mkdir()
    manifests, state = directories(base)
    machine, placements = Quick(node(MACHINE_64)), list[str]()
    with agent_of(machine.node, machine, manifests, state) as daemon:
        live(daemon, lambda: True, WakeUpReason.START)
        for number in range(EXCLUSIVE, EXCLUSIVE + sharing):
            (manifests / f"{number:04}.yaml").write_text(manifest(number))
        live(daemon, lambda: running(daemon) == 3 * sharing)
        daemon.rest()
        machine.writes.clear()
        write = PlacementFiles.write
        with monkeypatch.context() as counting:
            counting.setattr(
                PlacementFiles,
                "write",
                lambda files, name, text: (placements.append(name), write(files, name, text))[1],
            )
            (manifests / "new.yaml").write_text(manifest(0))
            live(daemon, lambda: running(daemon) == 3 * sharing + 3)
            daemon.rest()
        [new] = [entry.pod.uid for entry in daemon.agent.state.entries if entry.pod.name == "p0000"]
    changes = [change for change in machine.writes if new not in change.path]
    assert all(isinstance(change, SetAttribute) for change in changes)
    writes = Counter((change.path, change.attribute) for change in changes if isinstance(change, SetAttribute))
    return writes, [name for name in placements if new not in name]


def test_a_pod_with_cpus_of_its_own_costs_the_same_beside_any_number_of_pods_that_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {number: written_for_one_more(tmp_path / f"{number}", monkeypatch, number) for number in (0, 1, 40)}
    assert {number: writes for number, (writes, _) in found.items()} == dict.fromkeys(found, POOL_WRITES)
    assert {number: files for number, (_, files) in found.items()} == {0: [], 1: ["_shared/pool"], 40: ["_shared/pool"]}
