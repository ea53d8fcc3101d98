"""`nodeagent inspect -o json` is as its shipped schema says, in every state of pods, containers and agent."""

import pytest

from nodeagent.core.model.host_processes import HostProcess, HostProcesses
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.node_view import NodeView
from nodeagent.views.inspect.document import inspect_node
from tests.support import inspected_nodes as inspected, json_schema
from tests.views.inspect.test_inspection import RECOVERY

WORLDS = {
    "everything": lambda: inspected.everything()[2],
    "idle": lambda: inspected.idle().view(),
    "nothing seen": lambda: inspected.idle().view(cgroups=None, pids=None, process_counts={}),
    "host processes": lambda: inspected.idle().view(
        host=HostProcesses((HostProcess(1, "init", CpuSet.of(0)),), 3, CpuSet.of(1), 2)
    ),
    "recovered": lambda: inspected.idle().view(recovery=RECOVERY, problems=("x",)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_its_document_is_as_its_schema_says(name: str) -> None:
    view: NodeView = WORLDS[name]()
    json_schema.check(inspect_node(view), "inspection")
