"""`nodeagent reserve` from the outside: what it asks of an agent, and what it prints of the answer."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from nodeagent.cli.support.known_names import find_reservations
from nodeagent.cli.support.numeric_arguments import begin_of_span
from nodeagent.core.model.reservation import Reservation
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.reservation_list import make_reservation
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import ShownReservation, describe_queue, describe_reservation
from tests.support import json_schema
from tests.support.job_agent import admit_job, answer_jobs

HOUR_MS = 3_600_000


def make(name: str, begin_ms: int, length_ms: int, cpus: str = "8") -> Reservation:
    return make_reservation(name, 0, f"uid-{name}", {"cpu": cpus}, begin_ms, begin_ms + length_ms)


class AgentModel:
    """Answers of an agent that makes each reservation, unless it has a reason not to."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.asked: list[Mapping[str, Any]] = []

    def reserve(self, arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        self.asked.append(arguments)
        if self.refuses:
            return {"refused": self.refuses}
        begin_ms, length_ms = arguments.get("fromMs", 0), arguments.get("forMs", 0)
        made = make(arguments["name"], begin_ms, length_ms, arguments.get("amounts", {}).get("cpu", "8"))
        return {"reservation": describe_reservation(made)}

    def queue(self, _arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        now_ms = time.time_ns() // 1_000_000
        kept = make("nightly", now_ms + 2 * HOUR_MS + 1000, HOUR_MS)
        return describe_queue((), (), (ShownReservation(kept, has_room=True),), now_ms)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        with answer_jobs(admit_job, queue=self.queue, reserve=self.reserve) as socket:
            command = (sys.executable, "-m", "nodeagent", "reserve", "--socket", socket, *words)
            return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_asks_for_the_next_time_that_the_clock_shows() -> None:
    agent, before = AgentModel(), datetime.now().astimezone()
    done = agent.run("--cpus", "8", "--memory", "4Gi", "--from", "22:00", "--for", "90m", "--user", "root")
    assert done.stdout.startswith("reserved:\nRESERVATION")
    (asked,) = agent.asked
    begin = datetime.fromtimestamp(asked["fromMs"] / 1000).astimezone()
    assert (begin.hour, begin.minute, begin > before, begin - before <= timedelta(hours=25)) == (22, 0, True, True)
    assert asked["name"] == f"at-{begin:%m%d}-2200"
    assert (asked["amounts"], asked["forMs"], asked["user"]) == ({"cpu": "8", "memory": "4Gi"}, 5_400_000, 0)


def test_it_asks_for_now_by_default_and_for_any_day() -> None:
    agent = AgentModel()
    before = time.time()
    agent.run("--cpus", "1", "--for", "1h", "--name", "a")
    agent.run("--cpus", "1", "--for", "1h", "--from", "2037-11-29T22:00")
    first, second = agent.asked
    assert before - 1 <= first["fromMs"] / 1000 <= time.time()
    assert first["name"] == "a"
    assert second["fromMs"] == datetime(2037, 11, 29, 22).astimezone().timestamp() * 1000


def test_a_refusal_has_its_own_status() -> None:
    done = AgentModel(refuses="jobs/one may still hold its resources at that time").run("--cpus", "1", "--for", "1h")
    assert done.returncode == 4
    assert done.stderr.startswith(
        "nodeagent: nothing is reserved: jobs/one may still hold its resources at that time\nhint: "
    )


def test_an_error_of_the_agent_is_status_1() -> None:
    def fail(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        raise NodeAgentError("no reservation of that name", hint="see `nodeagent queue`")

    with answer_jobs(admit_job, queue=fail, reserve=fail) as socket:
        for words in (("reserve", "--cancel", "nightly"), ("reserve", "--list"), ("queue",)):
            command = (sys.executable, "-m", "nodeagent", *words, "--socket", socket)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said = "nodeagent: no reservation of that name\nhint: see `nodeagent queue`\n"
            assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_it_lists_and_cancels() -> None:
    agent = AgentModel()
    assert "nightly" in agent.run("--list").stdout
    assert "begins in 2 h, for 1 h" in agent.run("--list").stdout
    assert agent.run("--cancel", "nightly").stdout == "cancelled nightly\n"
    assert agent.asked == [{"name": "nightly"}]
    for words in (("--list",), ("--cancel", "nightly"), ("--cpus", "1", "--for", "1h")):
        json_schema.check(json.loads(agent.run(*words, "-o", "json").stdout), "reservations")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name --cpus and --for, or --list, or --cancel NAME"),
        (("--list", "--cancel", "a"), "or --list, or --cancel"),
        (("--cpus", "1"), "--cpus and --for are needed together"),
        (("--for", "1h"), "--cpus and --for are needed together"),
        (("--list", "--user", "bob"), "--memory, --from, --name and --user are for a new reservation"),
        (("--cancel", "a", "--from", "22:00"), "--memory, --from, --name and --user are for a new reservation"),
        (("--cpus", "1", "--for", "9d"), "'9d' is not a time from 1s to 168h"),
        (("--cpus", "1", "--for", "1h", "--from", "25:00"), "'25:00' is not a time such as 22:00 or 2026-11-29T22:00"),
    ],
)
def test_words_that_are_wrong(words: tuple[str, ...], said: str) -> None:
    agent = AgentModel()
    done = agent.run(*words)
    assert (done.returncode, agent.asked) == (64, [])
    assert said in done.stderr


def test_a_time_without_a_day_is_at_most_a_day_ahead() -> None:
    now = datetime.now().astimezone()
    for hour in range(24):
        found = begin_of_span(f"{hour}:00")
        assert now < found <= now + timedelta(hours=25)
        assert found.hour == hour


def test_completion_knows_their_names() -> None:
    with answer_jobs(admit_job, queue=AgentModel().queue) as socket:
        assert find_reservations({"socket": socket}) == ("nightly",)
    assert find_reservations({"socket": socket}) == ()
