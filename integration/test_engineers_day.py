"""A day on a shared machine: three engineers with queued runs and certificates, and a power cut. `pytest -rP` prints all that they see."""

import json
import re
from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.guest.session import Request
from integration.isolation import configuration
from integration.node import CONFIG, READY, Document, Node
from integration.test_job import ended, gone, said, there

ENGINEERS = ("anna", "ben", "carla")
LOOP = "bash -c 'until [ $SECONDS -ge 3 ]; do :; done'"
LATENCIES = "cat /sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us | sort | uniq -c"
EVENING = "$(date -d '8 hours' +%Y-%m-%dT%H:00)"


class Engineer:
    """Somebody at a terminal, whose screens are printed."""

    def __init__(self, node: Node, name: str) -> None:
        self._node, self.name = node, name

    def starts(self, command: str) -> Request:
        """Type a command that takes a while."""
        print(f"\n[{self.name}] $ {command}")
        login = ["setpriv", "--reuid", self.name, "--regid", self.name, "--init-groups", "--reset-env"]
        argv = [*login, "bash", "-c", f"exec {command}"]
        return self._node.guest.start(argv, cwd=f"/home/{self.name}", terminal=(40, 100, "dumb"))

    def types(self, command: str, status: int = 0) -> str:
        """Type a command, and read what it prints."""
        return self.reads(self.starts(command), status)

    def reads(self, job: Request, status: int = 0) -> str:
        """Wait for a command's end, and read what it has printed."""
        found = ended(self._node, job)
        shown = bytes(job.stdout).decode().replace("\r\n", "\n")
        print(f"[{self.name}] {shown}(status {found})")
        assert found == status, shown
        return shown

    def report(self, file: str) -> Document:
        document: Document = json.loads(self._node.guest.get(f"/home/{self.name}/{file}"))
        return document


@pytest.fixture(params=["two_sockets", "four_nodes"])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    guest: Guest = request.getfixturevalue(request.param)
    node = Node(guest)
    node.clear()
    usual = node.guest.get(CONFIG)
    node.run("groupadd -f runners")
    for name in ENGINEERS:
        node.run(f"id {name} || useradd -m -s /bin/bash -G runners,nodeagent {name}")
    bounds = "jobs: {group: runners, maxCPUs: 10, maxMemory: 1Gi, maxPerUser: 3} #"
    node.guest.put(CONFIG, configuration("partition", "affinity").replace("jobs: ", bounds))
    node.restart_agent()
    yield node
    node.guest.put(CONFIG, usual)
    node.restart_agent()


@pytest.mark.long  # each thing that happens has its own test
@pytest.mark.configures
def test_a_day_of_three_engineers_with_a_power_cut(node: Node) -> None:
    anna, ben, carla = (Engineer(node, name) for name in ENGINEERS)
    latencies = node.run(LATENCIES).stdout

    # the morning: anna's long run, ben waits for half of the machine, carla's short one fits beside both
    long = anna.starts(
        "nodeagent job --cpus 4 --memory 64Mi --quiet --max-time 40m --name solver -- sh -c 'echo up; exec sleep 2000'"
    )
    print(said(node, long, b"up"))
    ben.starts(
        "nodeagent job --cpus 8 --memory 64Mi --wait=2h --max-time 10m --name wide -- sh -c 'echo up; exec sleep 2001'"
    )
    node.wait(there("wide"), "ben's job to wait")
    refused = carla.types("nodeagent job --cpus 8 --memory 64Mi -- true", 125)
    assert "--wait" in refused, "what she may do"
    assert carla.types("nodeagent job --cpus 2 --memory 64Mi --wait --max-time 1m --name quick -- nproc") == "2\n"
    queue = ben.types("nodeagent queue")
    assert re.search(r"jobs/solver +anna .* runs for ", queue)
    assert re.search(r"1\. +jobs/wide +ben .* starts at the latest in (39|40) min", queue)

    # anna reserves the night, when nothing else is expected to run, and nobody else gets it
    reserved = anna.types(f"nodeagent reserve --cpus 8 --from {EVENING} --for 2h --name nightly")
    assert "nightly" in reserved
    too_much = ben.types(f"nodeagent reserve --cpus 8 --from {EVENING} --for 1h", 4)
    assert "nothing is reserved" in too_much

    # noon: carla measures beside a neighbour on her core's other thread, and then on a whole core
    neighbours = []
    for name in ("first", "neighbour"):  # the first one is on the core of the reserved CPU
        one = (
            f"nodeagent job --cpus 1 --memory 64Mi --wait --max-time 5m --name {name} -- bash -c 'while :; do :; done'"
        )
        neighbours.append(ben.starts(one))
        node.wait(there(name), f"{name} to run")
    carla.types(f"nodeagent job --cpus 1 --memory 64Mi --wait --max-time 5m --report bad.json -- {LOOP}")
    assert carla.report("bad.json")["disturbances"][0]["name"] == "sibling"
    carla.types(
        f"nodeagent job --cpus 2 --memory 64Mi --wait --max-time 5m --report good.json --require-clean -- {LOOP}"
    )
    assert carla.report("good.json")["verdict"] == "clean"
    assert "1. the sibling was busy" in carla.types("nodeagent report compare good.json bad.json")
    for job in neighbours:
        job.send(b"\x03")
        ben.reads(job, 130)

    # the afternoon: the power fails while anna's job runs and ben's waits
    ben.types("nodeagent inspect")
    node.run("sync")
    node.guest.power_cut()
    node.guest.wait_multi_user()
    node.run(READY)
    after = ben.types("nodeagent queue")
    assert "no job runs, and none waits" in after
    assert "nightly" in after
    assert node.run(LATENCIES).stdout == latencies
    ben.types("nodeagent inspect")
    ben.types(f"nodeagent job --cpus 8 --memory 64Mi --wait --max-time 10m --report again.json -- {LOOP}")

    # the evening: the reservation of a moment is used as that of the night would be
    carla.types("nodeagent reserve --cpus 4 --for 20m --name tonight")
    assert carla.types("nodeagent job --cpus 4 --memory 64Mi --reservation tonight -- nproc") == "4\n"
    ben.types("nodeagent job --cpus 4 --memory 64Mi --reservation tonight -- nproc", 125)
    carla.types("nodeagent reserve --cancel tonight")
    anna.types("nodeagent reserve --cancel nightly")
    node.wait(gone, "the last job to be gone")
