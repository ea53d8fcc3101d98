"""`nodeagent job`: asks the agent to move this process to the requested CPUs and memory, and then replaces this process by the command.

Many jobs are short, so the command must start fast. For a job with only plain options (`read_plain_words`), neither the argument parser nor
other unneeded modules are loaded. Functions for other options and for errors therefore import their modules themselves.
"""

from __future__ import annotations

import os
import sys

from nodeagent.cli.support.becoming import EXIT_NOT_ENTERED, run_command
from nodeagent.cli.support.places import DEFAULT_JOB_SOCKET, DEFAULT_SOCKET
from nodeagent.cli.support.pod_amounts import add_amount_arguments, find_wrong_option, read_amounts
from nodeagent.edge.cgroups.cgroup_entry import read_own_cpus, reset_affinity
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, ApiError, call
from nodeagent.errors import NodeAgentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    import pwd
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

_OF_NAMES = "abcdefghijklmnopqrstuvwxyz0123456789"
_REPORT_LINE = "-"
"""Value of `--report` if the user gives no file name. The report is then one line on stderr."""
_LONGEST_STEM = 40
"""Maximum number of characters that a generated pod name takes from the command's name. With the process ID appended, the name is far below
the limit of 253 characters.
"""


_ASK_AGAIN_SECONDS = 0.5
"""Shortest time, in seconds, between two attempts to reach the agent, if the agent is restarted while a job waits."""


class JobError(NodeAgentError):
    """The job was not started."""

    exit_status = EXIT_NOT_ENTERED


class JobRefusedError(JobError):
    """The agent refused the job's pod."""


class PlainOptions:
    """Options of a job that was started with plain options only. The attributes have the same names as in the argument parser. None means
    that the user didn't give the option.
    """

    cpus: str | None = None
    memory: str | None = None
    hugepages_2Mi: str | None = None  # noqa: N815 - as the resource
    hugepages_1Gi: str | None = None  # noqa: N815 - as the resource
    numa: str | None = None
    near: str | None = None
    name: str = ""
    socket: str | None = None
    core_class: None = None
    quiet: str | None = None
    settings: tuple[str, ...] = ()
    process: tuple[tuple[str, object], ...] = ()
    wait: None = None
    max_time: None = None
    reservation: None = None
    report: str | None = None
    until_free = False

    def __init__(self) -> None:
        self.device: list[str] = []
        self.argv: list[str] = []


_PLAIN = {
    f"--{name.replace('_', '-')}": name
    for name in ("cpus", "memory", "hugepages_2Mi", "hugepages_1Gi", "numa", "near", "name", "socket", "device")
}
"""Attributes of `PlainOptions`, by plain option. These options need no argument parser, because it would only check that a
value is given.
"""


def read_plain_words(words: Sequence[str]) -> PlainOptions | None:
    """Read the words after `job` without the argument parser, if they have the plain form. None means that the argument parser must read
    them.

    In the plain form, each option is a plain option, spelled in full and with a value, and a command follows after `--`.
    """
    options = PlainOptions()
    rest = iter(words)
    for word in rest:
        if word == "--":
            options.argv = list(rest)
            break
        spelling, equals, value = word.partition("=")
        value = value if equals else next(rest, "")
        if spelling not in _PLAIN or value[:1] in {"", "-"}:
            return None
        if spelling == "--device":
            options.device.append(value)
        else:
            setattr(options, _PLAIN[spelling], value)
    return options if options.cpus and options.memory and options.argv else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    import argparse

    from nodeagent.cli.support.named_files import named_path
    from nodeagent.cli.support.numeric_arguments import (
        LONGEST_SPAN_SECONDS,
        MOST_REPETITIONS,
        repetitions,
        time_span,
        whole_number,
    )
    from nodeagent.core.model.quiet import DEFAULT_PROFILE

    parser.usage = """\
nodeagent job --cpus N --memory AMOUNT [--hugepages-2Mi AMOUNT]
                     [--hugepages-1Gi AMOUNT] [--numa N]
                     [--core-class CLASS] [--near DEVICES]
                     [--quiet [PROFILE]] [--idle-latency TIME]
                     [--governor NAME] [--min-frequency FREQUENCY]
                     [--max-frequency FREQUENCY] [--no-boost]
                     [--threads-per-core N] [--no-aslr] [--no-thp]
                     [--sched POLICY] [--nice N]
                     [--device RESOURCE] [--name NAME] [--user USER]
                     [--inherit] [--report [FILE]] [--require-clean]
                     [--repeat N] [--until-clean N] [--until-free]
                     [--wait [TIME] | --now] [--max-time TIME]
                     [--reservation RESERVATION] [--socket PATH]
                     -- COMMAND [ARG ...]"""
    add_amount_arguments(parser)
    parser.add_argument(
        "--quiet",
        nargs="?",
        const=DEFAULT_PROFILE,
        type=_read_profile,
        metavar="PROFILE",
        help="give the job's cores the settings of this profile while the job runs (`profiles:` in the configuration); the default "
        "profile, quiet, takes whole cores with idle siblings, forbids idle states that take more than 5 microseconds to leave, and sets "
        "the frequency governor performance; settings that this machine lacks are reported before the command starts",
    )
    for option, metavar, name, meaning in (
        (
            "--idle-latency",
            "TIME",
            "idleLatency",
            "longest time that the job's cores may take to leave an idle state, such as 2us",
        ),
        ("--governor", "NAME", "governor", "frequency governor of the job's cores"),
        ("--min-frequency", "FREQUENCY", "minFrequency", "lowest frequency of the job's cores, such as 2400MHz"),
        ("--max-frequency", "FREQUENCY", "maxFrequency", "highest frequency of the job's cores"),
    ):

        def read(text: str, name: str = name) -> str:
            return f"{name}={_read_word(text)}"

        parser.add_argument(
            option,
            dest="settings",
            action="append",
            type=read,
            metavar=metavar,
            help=f"{meaning}, while the job runs",
        )
    parser.add_argument(
        "--no-boost",
        dest="settings",
        action="append_const",
        const="boost=false",
        help="keep the job's cores at or below the nominal frequency",
    )
    parser.add_argument(
        "--threads-per-core",
        dest="settings",
        action="append",
        type=_read_threads,
        metavar="N",
        help="1: run on one thread of each of the job's cores, whose siblings stay idle, so --cpus 4 takes 4 whole cores; all: run on all "
        "threads, also with --quiet",
    )
    parser.add_argument(
        "--no-aslr",
        dest="process",
        action="append_const",
        const=("aslr", False),
        help="use the same addresses in each run of the command (no ASLR)",
    )
    parser.add_argument(
        "--no-thp",
        dest="process",
        action="append_const",
        const=("transparentHugePages", False),
        help="use no transparent huge pages for the command",
    )
    parser.add_argument(
        "--sched",
        dest="process",
        action="append",
        type=_read_scheduler,
        metavar="POLICY",
        help="scheduling policy of the command: batch, or fifo or rr with a priority from 1 to 49, such as fifo:10",
    )
    parser.add_argument(
        "--nice",
        dest="process",
        action="append",
        type=_read_nice,
        metavar="N",
        help="nice value of the command, -20 to 19",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name the pod jobs/NAME (default: made from the command and its process ID)"
    )
    parser.add_argument(
        "--user", metavar="USER", help="run the command as this user, with that user's groups (root only)"
    )
    parser.add_argument(
        "--inherit",
        action="store_true",
        help="with --user, also pass root's environment, open descriptors and terminal to the command",
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const=_REPORT_LINE,
        type=named_path,
        metavar="FILE",
        help="at the end, write one line to stderr: its CPUs, CPU time and throttling, its memory and how much was on other NUMA "
        "nodes, and how long other tasks ran on its CPUs; with FILE, write all that the kernel has counted, and whether the run was "
        "disturbed, to this file as JSON",
    )
    parser.add_argument(
        "--require-clean",
        action="store_true",
        help="exit with 123 if the command succeeds, but its run was not clean; needs --report FILE",
    )
    parser.add_argument(
        "--repeat",
        type=repetitions,
        metavar="N",
        help=f"run the command up to N times (at most {MOST_REPETITIONS}), as long as it succeeds; the reports of several runs are "
        "FILE with a number before the suffix; needs --report FILE",
    )
    parser.add_argument(
        "--until-clean", type=whole_number, metavar="N", help="stop once N runs were clean; needs --repeat"
    )
    parser.add_argument(
        "--until-free",
        action="store_true",
        help="return only when other programs can use the job's CPUs again: its last process has gone, and the agent has closed its cgroup",
    )
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--wait",
        nargs="?",
        const=LONGEST_SPAN_SECONDS,
        type=time_span,
        metavar="TIME",
        help="if the requested CPUs or memory are in use, wait until they are free, first come, first served, for at most TIME, such as "
        "30m (default: 7 days); a job that can never fit on this machine is refused at once",
    )
    begin.add_argument(
        "--now",
        dest="wait",
        action="store_const",
        const=None,
        help="fail at once if the requested CPUs or memory are in use (the default)",
    )
    parser.add_argument(
        "--max-time",
        type=time_span,
        metavar="TIME",
        help="end the job TIME after its start, such as 1h: its processes get SIGTERM, and SIGKILL after 10 s, and the exit status is 124",
    )
    parser.add_argument(
        "--reservation",
        type=_read_reservation,
        metavar="RESERVATION",
        help="run in this reservation (`nodeagent reserve`), and end with it as with --max-time; with --wait, wait until it begins",
    )
    parser.add_argument(
        "--socket", type=named_path, metavar="PATH", help=f"the agent's socket for jobs (default: {DEFAULT_JOB_SOCKET})"
    )
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND [ARG ...]", help="command to run")
    parser.epilog = """\
exit status: the command's own; 123: not clean, with --require-clean, or its report could not be written;
124: its time was over; 125: not started; 126: command cannot be run; 127: command not found; 64: wrong arguments

examples:
  nodeagent job --cpus 2 --memory 4Gi -- make -j2
  nodeagent job --cpus 4 --memory 8Gi --hugepages-2Mi 1Gi --numa 1 -- ./forwarder
  nodeagent job --cpus 2 --memory 1Gi --report -- ./benchmark
  nodeagent job --cpus 2 --memory 1Gi --report run.json --require-clean -- ./benchmark
  nodeagent job --cpus 2 --memory 1Gi --report run.json --repeat 10 --until-clean 3 -- ./benchmark
  nodeagent job --cpus 2 --memory 1Gi --quiet --max-frequency 2400MHz -- ./benchmark
  nodeagent job --cpus 2 --memory 1Gi --until-free -- make
  nodeagent job --cpus 8 --memory 1Gi --wait=30m --max-time 1h -- ./benchmark
  nodeagent job --cpus 4 --memory 1Gi --reservation nightly --wait -- ./benchmark
  sudo nodeagent job --cpus 2 --memory 1Gi --user alice -- ./simulate

nodeagent replaces itself by the command, which keeps the caller's terminal, environment, working directory, limits and user.
With --user, the command gets a user's own environment and no open files but its three streams. Where a process could type into root's
terminal (before kernel 6.2), it gets a terminal of its own, in which Ctrl-Z has no effect. The job ends with the command: processes that
are left get SIGTERM, and SIGKILL after 10 s. Restarts of the agent or of the launcher don't affect the job. With --report,
--until-free, --max-time or --reservation, the command is a child process: nodeagent waits for it, passes signals on and ends with its
status.
Needs root, or membership in the group that `jobs:` in the configuration names.
next: nodeagent inspect jobs/NAME shows where it runs, nodeagent release jobs/NAME ends it, nodeagent report compare FILE FILE compares
reports"""
    parser.set_defaults(parser=parser)


def run_plain(options: PlainOptions) -> NoReturn:
    """Request the job that `read_plain_words` returned, enter its cgroup, and replace this process by the command.

    Raises:
        NodeAgentError: the job was refused, or the command cannot be run; see `explain_failure`.
    """
    os.environ.update(_enter_job(options, options.argv)["environment"])
    run_command(options.argv)


def explain_failure(err: NodeAgentError, options: PlainOptions | argparse.Namespace) -> NodeAgentError:
    """Return the error to report for a job that failed. A refusal is first explained on stderr, and an invalid value of an option becomes a
    usage error.
    """
    if isinstance(err, JobRefusedError):
        sys.stderr.write(_explain_refusal(options))
    if hasattr(err, "exit_status"):
        return err
    if wrong := find_wrong_option(options, options.name or "job", _list_quiet_words(options)):
        from nodeagent.cli.support.exit_status import UsageError

        return UsageError(wrong.message, hint=wrong.hint)
    return JobError(err.message, hint=err.hint)


def run(options: argparse.Namespace) -> int:
    """Request the job, enter its cgroup, and run the command there.

    Raises:
        NodeAgentError: the job was refused, or the command cannot be run.
    """
    command = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if options.inherit and options.user is None:
        options.parser.error("--inherit needs --user: without --user, the command always inherits everything")
    if not command:
        options.parser.error("name a command after --, such as: -- make")
    if options.report in {None, _REPORT_LINE} and (options.require_clean or options.repeat or options.until_clean):
        options.parser.error("--require-clean, --repeat and --until-clean need --report FILE")
    if options.until_clean and options.until_clean > (options.repeat or 1):
        options.parser.error("--until-clean needs --repeat with at least as many runs")
    try:
        user = _find_user(options.user)
        writer, to_outside = None, -1
        if options.until_free or options.max_time or options.reservation:
            from nodeagent.cli.support.job_outside import stay_outside

            status, to_outside = stay_outside(options.socket or DEFAULT_JOB_SOCKET, until_free=options.until_free)
            if status is not None:
                return status
        if options.report is not None:
            from nodeagent.cli.support.job_report import ReportWriter, RunPlan

            path = None if options.report == _REPORT_LINE else options.report
            if path is not None:
                _check_report_files(path, options.repeat or 1)
            plan = RunPlan(path, options.repeat or 1, options.until_clean, options.require_clean)
            writer = ReportWriter.start(plan)
        answer = _enter_job(options, command)
        if to_outside >= 0:
            from nodeagent.cli.support.job_outside import tell_outside

            tell_outside(to_outside, answer)
        os.environ.update(answer["environment"])
        status = None
        if writer is not None:
            status = writer.attend(answer, command, options.socket or DEFAULT_JOB_SOCKET)
        if status is None and user is not None:
            from nodeagent.cli.support.other_user import become_user

            status = become_user(user, answer["environment"], inherits=options.inherit)
        if status is None:
            run_command(command)
    except NodeAgentError as err:
        raise explain_failure(err, options) from None
    return status


def _check_report_files(path: str, repeats: int) -> None:
    """Check that the report files can be written, so that no run is made in vain.

    Raises:
        JobError: a report can't be created, or an existing file can't be replaced.
    """
    import stat
    from itertools import chain
    from pathlib import Path

    from nodeagent.cli.support.run_report import number_path
    from nodeagent.edge.files.state_files import temporary_path

    directory = Path(path).parent
    why = ""
    if path.rpartition("/")[2] in {"", ".", ".."}:
        why = "it is a directory"
    elif not os.access(directory, os.W_OK | os.X_OK):
        why = f"no file can be made in {directory}"
    files = () if why else (number_path(path, number, repeats) for number in range(1, repeats + 1))
    for file in chain.from_iterable((file, temporary_path(file)) for file in files):
        try:
            there, around = Path(file).lstat(), directory.stat()
        except FileNotFoundError:
            continue
        except OSError as err:
            why = os.strerror(err.errno or 0)
        else:
            if not stat.S_ISREG(there.st_mode):
                why = "it is a directory, link, device, FIFO or socket"
            elif around.st_mode & stat.S_ISVTX and os.geteuid() not in {0, there.st_uid, around.st_uid}:
                why = "it is another user's file"
        if why:
            path = file
            break
    if why:
        raise JobError(f"cannot write {path}: {why}", hint="name another file with --report")


def _read_threads(text: str) -> str:
    """Convert the value of `--threads-per-core`, `1` or `all`, to the setting that determines whether siblings stay idle.

    Raises:
        argparse.ArgumentTypeError: the text is neither 1 nor all.
    """
    import argparse

    settings = {"1": "idleSiblings=true", "all": "idleSiblings=false"}
    if text not in settings:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor all")
    return settings[text]


def _read_word(text: str) -> str:
    """Check that a value contains no comma, because the agent gets it as one item of a comma-separated list. Return the value.

    Raises:
        argparse.ArgumentTypeError: the value contains a comma, which would begin another setting.
    """
    import argparse

    if "," in text:
        raise argparse.ArgumentTypeError(f"{text!r} must not contain a comma; give each setting by its own option")
    return text


def _read_profile(text: str) -> str:
    """Check the name of a profile, and return it.

    Raises:
        argparse.ArgumentTypeError: no profile can have this name.
    """
    import argparse

    from nodeagent.formats.syntax.quiet_settings import PROFILE_NAME, PROFILE_RULE

    if not PROFILE_NAME.fullmatch(_read_word(text)):
        raise argparse.ArgumentTypeError(f"{text!r} {PROFILE_RULE}")
    return text


def _read_reservation(text: str) -> str:
    """Check the name of a reservation, and return it.

    Raises:
        argparse.ArgumentTypeError: the name is empty. The agent would take this for a job without a reservation.
    """
    import argparse

    if not text:
        raise argparse.ArgumentTypeError("'' is not a reservation; if it was a variable, it is not set")
    return text


def _read_scheduler(text: str) -> tuple[str, str]:
    """Check a scheduling policy such as `fifo:10`, and return the setting as a pair of its name and value.

    Raises:
        argparse.ArgumentTypeError: there is no such policy.
    """
    import argparse

    from nodeagent.formats.syntax.quiet_settings import SCHEDULER, SCHEDULER_RULE

    if not SCHEDULER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} {SCHEDULER_RULE}")
    return "scheduler", text


def _read_nice(text: str) -> tuple[str, int]:
    """Parse a nice value, and return the setting as a pair of its name and value.

    Raises:
        argparse.ArgumentTypeError: the text is not a nice value.
    """
    import argparse
    from contextlib import suppress

    from nodeagent.formats.syntax.quiet_settings import NICE_RANGE

    with suppress(ValueError):
        if NICE_RANGE[0] <= int(text) <= NICE_RANGE[1]:
            return "nice", int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from -20 to 19")


def _ask_until_room(socket: str, seconds: float, asked: Mapping[str, Any]) -> Any:
    """Request a job, and wait until the agent has enough free CPUs and memory for it. If the agent is restarted meanwhile, repeat the
    request with the same ticket, a random text by which the agent recognises the job.

    Raises:
        ApiUnavailable: the agent doesn't answer at the first attempt.
        JobError: the agent was stopped during the wait, and the time limit has passed.
        ApiError: the agent answers with an error.
    """
    import time

    from nodeagent.edge.transport.local_api_client import ApiUnavailable

    ticket, until, has_reached = os.urandom(16).hex(), time.monotonic() + seconds, False
    while (left := until - time.monotonic()) > 0:
        began = time.monotonic()
        try:
            waits = {"ticket": ticket, "wait": max(round(left), 1)}
            return call(socket, "job", timeout_seconds=left + TURN_CALL_SECONDS, **asked, **waits)
        except ApiUnavailable as err:
            is_absent = isinstance(err.__cause__, FileNotFoundError | ConnectionRefusedError)
            if is_absent and not has_reached:
                raise
            has_reached = True
        time.sleep(max(_ASK_AGAIN_SECONDS - (time.monotonic() - began), 0))
    raise JobError("the agent was stopped while the job waited, and the time of --wait is over", hint=_AGENT_HINT)


def _generate_name(command: str) -> str:
    """Generate a name for the job's pod, from the command's name and the ID of this process. The process ID stays the same when the command
    replaces this process.
    """
    name = os.path.basename(command).lower()  # noqa: PTH119 - a word
    stem = "-".join("".join(c if c in _OF_NAMES else " " for c in name).split())[:_LONGEST_STEM].strip("-")
    return f"{stem or 'job'}-{os.getpid()}"


def _enter_job(options: PlainOptions | argparse.Namespace, command: Sequence[str]) -> Mapping[str, Any]:
    """Ask the agent to create a job and move this process into its cgroup. Return the agent's answer."""
    options.name = options.name or _generate_name(command[0])
    amounts = read_amounts(options)
    reset_affinity()
    socket = options.socket or DEFAULT_JOB_SOCKET
    asked = {"name": options.name, "amounts": amounts} | ({} if options.numa is None else {"numa": options.numa})
    asked |= {} if options.core_class is None else {"coreClass": options.core_class}
    asked |= {} if options.near is None else {"near": options.near}
    quiet = _list_quiet_words(options)
    asked |= {"quiet": quiet} if quiet else {}
    asked |= {} if options.report is None else {"report": True}
    asked |= {} if options.max_time is None else {"maxMs": round(options.max_time * 1000)}
    asked |= {} if options.reservation is None else {"reservation": options.reservation}
    try:
        if options.wait is None:
            answer = call(socket, "job", timeout_seconds=TURN_CALL_SECONDS, **asked)
        else:
            answer = _ask_until_room(socket, options.wait, asked)
    except ApiError as err:
        if isinstance(err.__cause__, PermissionError):
            hint = "run as root, or have root name one of your groups in the configuration: `jobs: {group: GROUP}`"
            raise JobError(err.message, hint=hint) from err
        raise
    if "refused" in answer:
        refused = answer["refused"]
        options.cpus = refused.get("cpus", options.cpus)  # the number includes siblings that the job keeps idle
        message = f"jobs/{options.name}: {refused['reason']}: {refused['message']}"
        if refused["reason"] in _UNEXPLAINED_HINTS:
            from nodeagent.core.model.refusals import NEEDED_LATER

            may_end_before = message.endswith(NEEDED_LATER)
            raise JobError(message, hint=_EARLY_HINT if may_end_before else _UNEXPLAINED_HINTS[refused["reason"]])
        raise JobRefusedError(message, hint=_REFUSED_HINT)
    own = read_own_cpus()
    if answer["exclusiveCPUs"] and not answer["sharedCPUs"] and own != answer["exclusiveCPUs"]:
        raise JobError(f"this process may run on CPUs {own}, not on {answer['exclusiveCPUs']}", hint=_MOVED_HINT)
    if options.numa is not None:
        from nodeagent.formats.manifest.placement_variables import MEMORY_NODES

        nodes = answer["environment"][MEMORY_NODES]
        if nodes != options.numa:
            raise JobError(f"the job's memory is on NUMA nodes {nodes}, not on {options.numa}", hint=_OLD_AGENT_HINT)
    ends = answer.get("endsAtMs")
    unsupported = {
        "--core-class": options.core_class is not None and answer.get("coreClass") != options.core_class,
        "--near": options.near is not None and not answer.get("near"),
        "--report": options.report is not None and "cgroup" not in answer,
        "--until-free": options.until_free and "uid" not in answer,
        "--max-time": options.max_time is not None and not ends,
        "--reservation": options.reservation is not None and not ends,
    }
    for option in [option for option, is_unsupported in unsupported.items() if is_unsupported]:
        raise JobError(f"the agent doesn't support {option}", hint=_OLD_AGENT_HINT)
    found: Mapping[str, Any] = answer
    return _make_quiet(found, options) if quiet or options.process else found


def _list_quiet_words(options: PlainOptions | argparse.Namespace) -> str:
    """Return the requested quiet profile and core settings in the notation of the pod annotation `quiet`. The result is empty if the user
    requested none.
    """
    return ",".join(([options.quiet] if options.quiet else []) + list(options.settings or ()))


def _make_quiet(answer: Mapping[str, Any], options: PlainOptions | argparse.Namespace) -> Mapping[str, Any]:
    """Apply the quiet settings that concern only this process, and report on stderr the settings that aren't available for this job. Return
    the agent's answer, updated with the settings that were applied.

    Raises:
        JobError: the agent doesn't support the option, or the job has no exclusive CPUs.
    """
    from nodeagent.cli.support.process_settings import apply_process_settings

    is_of_cores = bool(options.quiet or options.settings)
    if is_of_cores and "quiet" not in answer:
        raise JobError("the agent supports neither --quiet nor settings of cores", hint=_OLD_AGENT_HINT)
    if is_of_cores and not answer["exclusiveCPUs"]:
        hint = "ask for whole CPUs, where the configuration's cpuManagerPolicy is static"
        raise JobError("the job has no exclusive CPUs, so no settings of cores can be changed", hint=hint)
    process = {**answer.get("quiet", {}).get("process", {}), **dict(options.process or ())}
    answer = apply_process_settings(answer, process)
    missing = answer["quiet"]["missing"]
    for reason in sorted(set(missing.values())):
        names = [name for name, why in missing.items() if why == reason]
        sys.stderr.write(f"nodeagent: not quiet: {_join_settings(names)}: {reason}\n")
    return answer


def _join_settings(names: Sequence[str]) -> str:
    """Join the names of settings with commas. A setting that exists once per CPU is listed once, with its CPUs as ranges, because there may
    be hundreds of CPUs.
    """
    from nodeagent.core.model.idset import CpuSet

    cpus: dict[str, list[int]] = {}
    for name in names:
        setting, _, number = name.partition(" of CPU ")
        cpus.setdefault(setting, []).extend([int(number)] if number else [])
    return ", ".join(
        f"{setting} of CPU{'s' if len(found) > 1 else ''} {CpuSet.from_ids(found)}" if found else setting
        for setting, found in cpus.items()
    )


_REFUSED_HINT = "request less, or wait for room with `--wait=30m`; `nodeagent inspect` shows which pods have which CPUs"
_UNEXPLAINED_HINTS = {
    "WaitingForJobs": "wait in the queue with `--wait=30m`; `nodeagent queue` lists the waiting jobs",
    "WaitingForReservation": "wait with `--wait`; `nodeagent queue` lists the reservations with their times and jobs",
    "ReservationOver": "make another one with `nodeagent reserve`",
    "StateNotSaved": "have root fix the error of the state file that the message describes (`df` shows full file systems), and try again",
}
"""Hints for the reasons for which the agent refuses a job that would fit. Such a refusal isn't explained step by step, because no resource
is short.
"""
_EARLY_HINT = "wait with `--wait`, or let the job end before the reservation begins (`--max-time`); `nodeagent queue` shows that time"
_AGENT_HINT = "start the agent (`systemctl status nodeagent`), and try again"
_OLD_AGENT_HINT = "is the agent older than this program? `sudo systemctl restart nodeagent`"
_MOVED_HINT = "another program may move processes or set their affinity; see `nodeagent inspect`"


def _explain_refusal(options: PlainOptions | argparse.Namespace) -> str:
    """Explain the refusal step by step, as `nodeagent explain` does. The result is empty if this user may not read the node's state."""
    from pathlib import Path

    from nodeagent.cli.support.colour import text_width
    from nodeagent.cli.support.explained_pods import explain_with_progress
    from nodeagent.cli.support.node.devices import add_this_nodes_devices
    from nodeagent.cli.support.node.this_node import read_this_node
    from nodeagent.cli.support.node.what_if import create_what_if_node
    from nodeagent.cli.support.places import DEFAULT_CONFIG
    from nodeagent.formats.manifest.job_pod import job_pod
    from nodeagent.views.explain.document import describe_explanation
    from nodeagent.views.explain.text import render_explanation

    try:
        agent_socket = Path(options.socket or DEFAULT_JOB_SOCKET).with_name(Path(DEFAULT_SOCKET).name)
        node = create_what_if_node(read_this_node(DEFAULT_CONFIG, str(agent_socket)))
        amounts = read_amounts(options)
        quiet = _list_quiet_words(options)
        pod = job_pod(
            options.name, options.name, amounts, options.numa, options.core_class, options.near, quiet or None
        )
        explained = (explain_with_progress(add_this_nodes_devices(node.what_if, (pod,)), pod),)
        document = describe_explanation(
            explained, config=node.config, what_if=node.what_if, where=node.where, with_headroom=False
        )
    except NodeAgentError:
        return ""
    return render_explanation(document, text_width())


def _find_user(name: str | None) -> pwd.struct_passwd | None:
    if name is None:
        return None
    if os.geteuid() != 0:
        raise JobError("only root may run a job as another user", hint="leave out --user; the job then runs as you")
    import pwd

    try:
        return pwd.getpwnam(name)
    except KeyError as err:
        raise JobError(f"there is no user '{name}'", hint="`getent passwd` lists them") from err
