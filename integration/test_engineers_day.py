"""A day on a shared machine: three engineers with queued runs, certificates and a reservation, and a power cut.

`pytest -rP` prints all that they see.
"""

import json
import re
from collections.abc import Iterator

import pytest

from integration.guest.guest import Guest
from integration.guest.session import Request
from integration.isolation import configuration
from integration.node import CONFIG, READY, WAIT_SECONDS, Document, Node
from integration.test_job import LATENCIES, ended, gone, said, there
from tests.support.figures import keep

ENGINEERS = ("anna", "ben", "carla")
LOOP = "bash -c 'until [ $SECONDS -ge 3 ]; do :; done'"
EVENING = "$(date -d '8 hours' +%Y-%m-%dT%H:00)"


class Engineer:
    """Somebody at a terminal, whose screens are printed."""

    def __init__(self, node: Node, name: str) -> None:
        self._node, self.name = node, name
        self.commands = 0

    def starts(self, command: str) -> Request:
        """Type a command that takes a while."""
        print(f"\n[{self.name}] $ {command}")
        self.commands += 1
        login = ["setpriv", "--reuid", self.name, "--regid", self.name, "--init-groups", "--reset-env"]
        argv = [*login, "bash", "-c", f"exec {command}"]
        return self._node.guest.start(argv, cwd=f"/home/{self.name}", terminal=(40, 100, "dumb"))

    def types(self, command: str, status: int = 0) -> str:
        """Type a command, and read what it prints."""
        return self.reads(self.starts(command), status)

    def reads(self, job: Request, status: int = 0, seconds: float = WAIT_SECONDS) -> str:
        """Wait for a command's end, and read what it has printed."""
        found = ended(self._node, job, seconds)
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
    reserved = anna.types(f"nodeagent reserve --cpus 8 --memory 64Mi --from {EVENING} --for 2m --name nightly")
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

    spend_the_evening(node, anna, ben)
    assert "nightly" not in carla.types("nodeagent queue")
    node.wait(gone, "the last job to be gone")
    commands = sum(one.commands for one in (anna, ben, carla))
    keep("a day of engineers", f"Debian {node.guest.image.release.number}", commands=commands, power_cuts=1)


def spend_the_evening(node: Node, anna: Engineer, ben: Engineer) -> None:
    """From shortly before the reservation nightly: only anna's run in it starts, and ends with it; ben's then starts when said."""
    (nightly,) = json.loads(node.run("nodeagent reserve --list -o json").stdout)["reservations"]
    night = anna.starts(
        "nodeagent job --cpus 4 --memory 64Mi --reservation nightly --wait --name night -- sh -c 'nproc; exec sleep 2002'"
    )
    node.wait(there("night"), "anna's job to wait")
    anna.types("nodeagent queue")
    assert one_job(node, "waiting", "startsByMs") == ("jobs/night", "nightly", nightly["fromMs"])
    node.run(f"date --set=@{nightly['fromMs'] // 1000 - 5}")
    assert said(node, night, b"4")
    without = ben.types("nodeagent job --cpus 8 --memory 64Mi --max-time 1m -- true", 125)
    assert "WaitingForReservation" in without, "for him there are 7, although 11 are free"
    ben.types("nodeagent job --cpus 1 --memory 64Mi --reservation nightly -- true", 125)
    late = ben.starts(
        "nodeagent job --cpus 8 --memory 64Mi --wait --max-time 10m --name late -- sh -c 'nproc; exec sleep 2003'"
    )
    node.wait(there("late"), "ben's job to wait")
    ben.types("nodeagent queue")
    name, reservation, starts_by_ms = one_job(node, "waiting", "startsByMs")
    assert (name, reservation) == ("jobs/late", None)
    assert anna.reads(night, 124, seconds=120).startswith("4\nnodeagent: the job's time was over")
    said(node, late, b"8")
    name, reservation, began_ms = one_job(node, "running", "sinceMs")
    assert (name, reservation) == ("jobs/late", None)
    assert nightly["untilMs"] <= began_ms <= starts_by_ms
    late.send(b"\x03")
    ben.reads(late, 130)


def one_job(node: Node, state: str, time: str) -> tuple[str, str | None, int]:
    """The only job in this state: its name, its reservation, and one of its times."""
    (job,) = [one for one in json.loads(node.run("nodeagent queue -o json").stdout)["jobs"] if one["state"] == state]
    return job["name"], job["reservation"], job[time]
