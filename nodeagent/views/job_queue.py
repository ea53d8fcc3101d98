"""Document and text of `nodeagent queue`: the jobs that run, and those that wait, in order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.model.pod import CPU, MEMORY, Pod
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.words import format_age, format_time_until

Document = Mapping[str, Any]
_VERSION = 1


class ShownJob(Struct, frozen=True):
    """A job as the agent knows it. All times are in milliseconds since the epoch."""

    pod: Pod
    user: int
    """User ID of its owner."""
    pid: int
    is_waiting: bool
    since_ms: int
    """Begin of its wait, or of its run."""
    max_ms: int = 0
    """Longest time from its start to its end. 0 means no limit."""
    ends_at_ms: int | None = None
    """Latest end of its run. None means unknown."""
    lacks: str = ""
    """Reason why it waits."""
    starts_by_ms: int | None = None
    """Latest expected start. None means unknown, or that it runs."""
    is_behind_limit: bool = False
    """Whether its start isn't worked out, as too many jobs wait before it."""


def describe_queue(jobs: Sequence[ShownJob], at_ms: int) -> Document:
    """Return the document of all jobs, those that run first."""
    ordered = sorted(jobs, key=lambda job: job.is_waiting)
    shown, endless = [], None
    for job in ordered:
        shown.append(_describe_job(job, endless))
        endless = endless or (None if job.max_ms else job)
    return {"kind": "JobQueue", "version": _VERSION, "atMs": at_ms, "jobs": shown}


def _describe_job(job: ShownJob, endless: ShownJob | None) -> Document:
    """Describe a job. `endless` is the first job before it that has no time limit."""
    limits = dict(job.pod.containers[0].resources.limits)
    unknown = None
    if job.is_waiting and job.starts_by_ms is None:
        if job.is_behind_limit:
            unknown = "it is worked out only for the first waiting jobs"
        elif endless is not None:
            unknown = f"PID {endless.pid}'s job has no time limit"
        else:
            unknown = "pods that aren't jobs hold what it or a job before it needs"
    return {
        "name": job.pod.full_name,
        "uid": job.pod.uid,
        "user": job.user,
        "pid": job.pid,
        "cpus": str(limits[CPU]),
        "memory": str(limits[MEMORY]),
        "state": "waiting" if job.is_waiting else "running",
        "sinceMs": job.since_ms,
        "maxMs": job.max_ms or None,
        "endsByMs": job.ends_at_ms,
        "lacks": job.lacks or None,
        "startsByMs": job.starts_by_ms,
        "startUnknown": unknown,
    }


def render_queue(document: Document, width: int | None, name_user: Callable[[int], str]) -> str:
    """Format the document as text.

    Args:
        document: the result of `describe_queue`.
        width: number of columns. None means no limit.
        name_user: returns the name of a user ID.
    """
    if not document["jobs"]:
        return "no job runs, and none waits\n"
    at_ms, position = document["atMs"], 0
    rows, unknown = [("", "JOB", "USER", "PID", "CPUS", "MEMORY", "STATE")], dict[str, list[str]]()
    for job in document["jobs"]:
        is_waiting = job["state"] == "waiting"
        position += is_waiting
        state = f"{'waits' if is_waiting else 'runs'} for {format_age(at_ms - job['sinceMs'])}"
        if job["startsByMs"] is not None:
            state += f", starts at the latest {format_time_until(job['startsByMs'] - at_ms)}"
        elif is_waiting:
            state += ", start unknown"
            unknown.setdefault(job["startUnknown"], []).append(f"{position}. {job['name']}")
        elif job["endsByMs"] is not None:
            state += f", ends at the latest {format_time_until(job['endsByMs'] - at_ms)}"
        else:
            state += ", no time limit"
        number, user = f"{position}." if is_waiting else "", name_user(job["user"])
        rows.append((number, job["name"], user, str(job["pid"]), job["cpus"], job["memory"], state))
    lines = format_table(rows, width)
    for why, (first, *more) in unknown.items():
        whose = f"{first} and {len(more)} more: their" if more else f"{first}: its"
        lines += break_text(f"{whose} start is unknown: {why}", width)
    return "\n".join([*lines, ""])
