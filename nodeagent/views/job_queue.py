"""Document and text of `nodeagent queue`: running jobs, waiting jobs in order, and reservations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from nodeagent.core.model.pod import CPU, MEMORY, Pod
from nodeagent.core.model.reservation import Reservation, ReservedRoom
from nodeagent.views.wording.columns import break_text, format_table
from nodeagent.views.wording.reservations import render_reservations
from nodeagent.views.wording.words import format_age, format_time_until

Document = Mapping[str, Any]
_VERSION = 1


class ShownJob(Struct, frozen=True):
    """Running or waiting job, as the agent knows it. All times are in milliseconds since the epoch."""

    pod: Pod
    user: int
    """User ID of the job's owner."""
    pid: int
    is_waiting: bool
    since_ms: int
    """Start time of a running job, or the time since which a waiting job has been waiting."""
    max_ms: int = 0
    """Longest time from the job's start to its end, in milliseconds. 0 means no limit."""
    ends_at_ms: int | None = None
    """Latest possible end time of a running job. None means that this time is unknown."""
    lacks: str = ""
    """Reason why the job waits. Empty means that the job runs."""
    starts_by_ms: int | None = None
    """Latest time at which a waiting job is expected to start. None means that this time is unknown, or that the job already runs."""
    is_behind_limit: bool = False
    """Whether so many jobs wait before this job that its start time isn't computed."""
    reservation: str = ""
    """Name of the reservation in which the job runs. Empty means that the job has no reservation."""


class ShownReservation(Struct, frozen=True):
    reservation: Reservation
    has_room: bool
    """Whether the node will have enough CPUs and memory for the reservation when it begins, provided that no other pods are added until
    then.
    """


def describe_queue(
    jobs: Sequence[ShownJob], endless: Sequence[ShownJob], reservations: Sequence[ShownReservation], at_ms: int
) -> Document:
    """Return the document of all jobs, running jobs first, and of all reservations.

    Args:
        jobs: the jobs.
        endless: the jobs without a time limit that occupy what the first waiting job with an unknown start needs. Empty means that pods
            other than jobs occupy it.
        reservations: the reservations, ordered by start time.
        at_ms: the time of the answer, in milliseconds since the epoch.
    """
    ordered = sorted(jobs, key=lambda job: job.is_waiting)
    return {
        "kind": "JobQueue",
        "version": _VERSION,
        "atMs": at_ms,
        "jobs": [_describe_job(job, endless) for job in ordered],
        "reservations": [
            describe_reservation(
                one.reservation,
                [job.pod.full_name for job in ordered if job.reservation == one.reservation.name],
                has_room=one.has_room,
            )
            for one in reservations
        ],
    }


def describe_reservations(reservations: Sequence[Document], at_ms: int) -> Document:
    """Return the document of `nodeagent reserve`, made from results of `describe_reservation`."""
    return {"kind": "Reservations", "version": _VERSION, "atMs": at_ms, "reservations": list(reservations)}


def describe_reservation(reservation: Reservation, jobs: Sequence[str] = (), *, has_room: bool = True) -> Document:
    return {**ReservedRoom.of(reservation, jobs).as_document(), "hasRoom": has_room}


def _describe_job(job: ShownJob, endless: Sequence[ShownJob]) -> Document:
    limits = dict(job.pod.containers[0].resources.limits)
    unknown = None
    if job.is_waiting and job.starts_by_ms is None:
        if job.is_behind_limit:
            unknown = "it is computed only for the first waiting jobs"
        elif job.reservation:
            unknown = f"it starts when reservation {job.reservation} has enough free for it"
        elif len(endless) > 1:
            unknown = f"the jobs of PIDs {', '.join(str(one.pid) for one in endless)} have no time limit"
        elif endless:
            unknown = f"PID {endless[0].pid}'s job has no time limit"
        else:
            unknown = "pods that aren't jobs hold resources that this job or an earlier job needs"
    return {
        "name": job.pod.full_name,
        "uid": job.pod.uid,
        "user": job.user,
        "pid": job.pid,
        "cpus": str(limits[CPU]),
        "memory": str(limits[MEMORY]),
        "reservation": job.reservation or None,
        "state": "waiting" if job.is_waiting else "running",
        "sinceMs": job.since_ms,
        "maxMs": job.max_ms or None,
        "endsByMs": job.ends_at_ms,
        "lacks": job.lacks or None,
        "startsByMs": job.starts_by_ms,
        "startUnknown": unknown,
    }


def render_queue(
    document: Document,
    width: int | None,
    name_user: Callable[[int], str] = str,
    format_time: Callable[[int], str] = str,
) -> str:
    """Format the document of `describe_queue` as text.

    Args:
        document: the result of `describe_queue`.
        width: number of columns. None means no limit.
        name_user: function that returns the name of a user ID.
        format_time: function that formats a time, given in milliseconds since the epoch.
    """
    at_ms, position = document["atMs"], 0
    reserved = render_reservations(document["reservations"], at_ms, width, name_user, format_time)
    if not document["jobs"]:
        return f"no job runs, and none waits\n{reserved}"
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
        state += "" if job["reservation"] is None else f", in reservation {job['reservation']}"
        number, user = f"{position}." if is_waiting else "", name_user(job["user"])
        rows.append((number, job["name"], user, str(job["pid"]), job["cpus"], job["memory"], state))
    lines = format_table(rows, width)
    for why, (first, *more) in unknown.items():
        summary = f"{first} and {len(more)} more: their start is unknown" if more else f"{first}: its start is unknown"
        lines += break_text(f"{summary}: {why}", width)
    return "\n".join([*lines, *([""] if reserved else []), reserved])
