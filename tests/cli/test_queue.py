"""`nodeagent queue` from the outside: what it prints of an agent's answer, and its document."""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from nodeagent.core.model.reservation import Reservation
from nodeagent.formats.checkpoint.reservation_list import make_reservation
from nodeagent.formats.manifest.job_pod import job_pod
from nodeagent.formats.wire.exchange import Peer
from nodeagent.views.job_queue import ShownJob, ShownReservation, describe_queue, render_queue
from tests.support import json_schema
from tests.support.described_nodes import golden
from tests.support.job_agent import admit_job, answer_jobs

NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000
NOBODY = 4_000_000_000


def shown(name: str, *, waits: bool = False, minutes: int = 5, user: int = 0, **more: Any) -> ShownJob:
    asked = job_pod(name, f"uid-{name}", {"cpu": "8", "memory": "4Gi"})
    return ShownJob(asked, user, 4711, waits, NOW_MS - minutes * MINUTE_MS, **more)


def reservation(name: str, begin: int, end: int, user: int = 0, **memory: str) -> Reservation:
    """Times: minutes from now."""
    times = (NOW_MS + begin * MINUTE_MS, NOW_MS + end * MINUTE_MS)
    return make_reservation(name, user, f"uid-{name}", {"cpu": "8"} | memory, *times)


def asked(
    jobs: tuple[ShownJob, ...],
    *words: str,
    endless: tuple[ShownJob, ...] = (),
    reserved: tuple[ShownReservation, ...] = (),
) -> subprocess.CompletedProcess[str]:
    def answer(_arguments: Mapping[str, Any], _peer: Peer) -> Mapping[str, object]:
        return describe_queue(jobs, endless, reserved, NOW_MS)

    with answer_jobs(admit_job, queue=answer) as socket:
        command = (sys.executable, "-m", "nodeagent", "queue", "--socket", socket, *words)
        environment = {**os.environ, "TZ": "UTC"}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment)


JOBS = (
    shown("waits", waits=True, minutes=3, max_ms=MINUTE_MS, lacks="no room", starts_by_ms=NOW_MS + 10 * MINUTE_MS),
    shown("limited", max_ms=60 * MINUTE_MS, ends_at_ms=NOW_MS + 55 * MINUTE_MS),
    shown("endless", minutes=200, user=NOBODY),
    shown("never", waits=True, minutes=2, lacks="no room"),
    shown("reserved", max_ms=MINUTE_MS, reservation="nightly"),
    shown("inside", waits=True, lacks="used up", reservation="nightly"),
)


RESERVED = (
    ShownReservation(reservation("nightly", -20, 100, memory="4Gi"), has_room=False),
    ShownReservation(reservation("later", 190, 310, user=NOBODY), has_room=True),
)


def test_its_text() -> None:
    golden(
        "queue.txt",
        asked(JOBS, endless=JOBS[2:3], reserved=RESERVED).stdout.replace(pwd.getpwuid(os.getuid()).pw_name, "root"),
    )
    assert asked(()).stdout == "no job runs, and none waits\n"
    assert asked((), reserved=RESERVED).stdout.splitlines()[:2] == [
        "no job runs, and none waits",
        "RESERVATION  USER        CPUS  MEMORY  FROM         TO           STATE",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_what_is_to_say_of_a_reservation_is_in_few_lines_at_any_width(width: int) -> None:
    text = render_queue(describe_queue((), (), RESERVED, NOW_MS), width)
    assert max(map(len, text.splitlines())) <= width
    assert "  in it: jobs/reserved, jobs/inside\n" in render_queue(describe_queue(JOBS, (), RESERVED, NOW_MS), width)
    assert "  without room: other pods hold it, or the machine has less\n" in text


def test_its_document_is_as_its_schema_says() -> None:
    document = json.loads(asked(JOBS, "-o", "json", endless=JOBS[2:3], reserved=RESERVED).stdout)
    json_schema.check(document, "job-queue")
    assert [job["name"] for job in document["jobs"]] == [
        *("jobs/limited", "jobs/endless", "jobs/reserved", "jobs/waits", "jobs/never", "jobs/inside"),
    ]
    unknown = [job["startUnknown"] for job in document["jobs"]]
    assert unknown[:4] == [None, None, None, None]
    assert unknown[4:] == [
        "PID 4711's job has no time limit",
        "it starts when reservation nightly has enough free for it",
    ]


def test_several_jobs_without_limits_can_be_in_the_way_together() -> None:
    jobs = (shown("never", waits=True), shown("one"), shown("two"))
    job = describe_queue(jobs, jobs[1:], (), NOW_MS)["jobs"][-1]
    assert job["startUnknown"] == "the jobs of PIDs 4711, 4711 have no time limit"


def test_a_start_that_no_job_delays_is_delayed_by_other_pods() -> None:
    (job,) = describe_queue((shown("never", waits=True),), (), (), NOW_MS)["jobs"]
    assert job["startUnknown"] == "pods that aren't jobs hold resources that this job or an earlier job needs"


def test_a_job_behind_those_whose_starts_are_worked_out_says_so() -> None:
    first = shown("first", waits=True, max_ms=MINUTE_MS, starts_by_ms=NOW_MS + MINUTE_MS)
    _, job = describe_queue((first, shown("far", waits=True, is_behind_limit=True)), (), (), NOW_MS)["jobs"]
    assert job["startUnknown"] == "it is computed only for the first waiting jobs"


def test_the_same_reason_is_told_once_and_the_table_has_the_terminals_width() -> None:
    jobs = (shown("endless"), *(shown(f"never-{'long-' * 9}{n}", waits=True, max_ms=MINUTE_MS) for n in range(200)))
    for width in (80, 200):
        lines = render_queue(describe_queue(jobs, jobs[:1], (), NOW_MS), width, str).splitlines()
        assert max(map(len, lines)) <= width
        told = " ".join(line.strip() for line in lines if "start is unknown" in line or lines[-1] == line)
        assert told.count("PID 4711's job has no time limit") == 1
        assert "and 199 more: their start is unknown" in " ".join(" ".join(lines[-3:]).split())
