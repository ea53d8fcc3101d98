"""`nodeagent inspect -o json` is as its shipped schema says, in every state of pods, containers and agent."""

import pytest

from nodeagent.core.model.host_processes import HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.views.inspect.document import Sight, inspection
from tests.support import inspected_nodes as inspected, json_schema
from tests.views.inspect.test_inspection import RECOVERY

WORLDS = {
    "everything": lambda: inspected.everything()[2],
    "idle": lambda: inspected.idle().sight(),
    "nothing seen": lambda: inspected.idle().sight(seen=None, kernel=None, pids=None, process_counts=None),
    "host processes": lambda: inspected.idle().sight(
        host=HostProcesses((HostProcess(1, "init", CpuSet.of(0)),), 3, CpuSet.of(1), 2)
    ),
    "recovered": lambda: inspected.idle().sight(recovery=RECOVERY, problems=("x",)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_its_document_is_as_its_schema_says(name: str) -> None:
    sight: Sight = WORLDS[name]()
    json_schema.check(inspection(sight), "inspection")
