"""`nodeagent inspect -o json` is as its shipped schema says, in every state of pods, containers and agent."""

import pytest

import inspected
import json_schema
from nodeagent.core.idset import CpuSet
from nodeagent.formats.inspection import HostProcess, HostProcesses, Sight, inspection
from test_inspection import RECOVERY

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
