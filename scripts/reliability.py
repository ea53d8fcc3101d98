# ruff: noqa: INP001, E501 - a script of its own, with a table of one row per line
"""Writes what the tests have counted into docs/reliability.md: `make figures`. Tests hold the page to the kept counts."""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "tests" / "results"


class Row(NamedTuple):
    topic: str
    """What the test keeps its counts under."""
    says: str
    test: str


ROWS = (
    Row("crash points", "the agent dies before each call that changes something, and in the middle of each write", "tests/daemon/test_crash_points.py"),
    Row("deaths in a row", "the agent is killed again and again; each new process gets one step further than its predecessor", "tests/daemon/test_crash_points.py"),
    Row("kills in a guest", "`kill -9` of the service at chosen steps of admission, removal and start", "integration/test_faults.py"),
    Row("damaged files", "each reader reads each version of its files, truncated at every byte and with every bit flipped", "tests/daemon/test_damage.py"),
    Row("starts with damaged files", "the agent starts with each truncated state file, and with a flipped bit in each byte", "tests/daemon/test_damage.py"),
    Row("failed saves", "each call that saves the state fails, because the disk is full, over quota, read-only or broken", "tests/daemon/test_full_disk.py"),
    Row("failed cgroup writes", "each cgroup write of admissions and removals fails with each answer of the kernel", "tests/daemon/test_write_failures.py"),
    Row("churn", "pods come and go at random, watched by the kernel's scheduler events", "integration/test_no_overlap.py"),
    Row("churn with faults", "pods come and go at random, while agent and launcher are killed and restarted, CPUs go offline and come back, and the clock is set", "integration/test_no_overlap.py"),
    Row("churn with resizes", "pods come and go, and running containers get more CPUs and give them up again", "integration/test_no_overlap.py"),
    Row("churn with resizes and deaths", "pods come and go and are resized, while agent and launcher are killed and restarted, systemd reloads and the clock is set", "integration/test_no_overlap.py --long"),
    Row("churn side by side", "pods, jobs, pinned services and containerd's pods at once, while agent, launcher and containerd are killed and restarted", "integration/test_side_by_side.py --long"),
    Row("churn with faults and isolation", "pods come and go with the same faults, and the host is kept off exclusive CPUs, on Debian 12 and 13", "integration/test_no_overlap_isolated.py --long"),
    Row("fuzzing", "damaged input to everything that reads foreign data: manifests, configuration, state files, sysfs, sockets", "tests/support/fuzz.py"),
    Row("inputs built by Hypothesis", "hostile inputs that Hypothesis builds from scratch, for everything that reads foreign data", "tests/project/test_fuzz.py --hypothesis-profile=search"),
    Row("load", "pods of three containers arrive at once, survive a restart of the agent and leave; all pods are decided, and none is lost", "tests/daemon/test_load.py --host-soak"),
    Row("load in a guest", "pods arrive at once on a real kernel, survive a restart of the agent and leave", "integration/test_load_live.py --long"),
    Row("an hour of churn", "pods arrive, change, fail and leave at random during queries and scrapes; memory and other resources of the agent don't grow", "tests/daemon/test_churn.py --host-soak"),
    Row("flood", "files are written and renamed as fast as possible; the last version of each file is what runs", "tests/daemon/test_load.py --host-soak"),
    Row("wrong manifests", "thousands of files that are invalid, share a name, or are more pods than fit; each file gets one answer", "tests/daemon/test_load.py --host-soak"),
    Row("disturbed runs", "a job's run is disturbed by a process, a busy sibling, interrupts that another program causes, quotas, remote memory or too little memory; its certificate names this disturbance first", "integration/test_certificate_runs.py --long"),
    Row("stolen time", "a busy hypervisor takes time from a job's run; its certificate names this first, and in calm runs before not at all", "integration/test_steal.py --long"),
    Row("undisturbed runs", "nothing disturbs a job's run while the host is kept off exclusive CPUs (`hostIsolation: partition`, `interruptIsolation: affinity`), and its certificate is clean", "integration/test_certificate_runs.py --long"),
    Row("a day of engineers", "three engineers share a machine for a day, with jobs that wait, a disturbed run and a clean one, a reservation and a power cut, on Debian 12 and 13", "integration/test_engineers_day.py --long"),
)  # fmt: skip


def kept(topic: str) -> dict[str, dict[str, int]]:
    file = RESULTS / f"{topic.replace(' ', '-')}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def totals(cases: dict[str, dict[str, int]]) -> dict[str, int]:
    """Add the cases up."""
    names = dict.fromkeys(name for counts in cases.values() for name in counts)
    return {name: sum(counts.get(name, 0) for counts in cases.values()) for name in names}


def table() -> str:
    lines = ["| what is done | test | counts |", "| --- | --- | --- |"]
    for row in ROWS:
        cases = kept(row.topic)
        if cases:
            counts = [f"{count:,} {name}" for name, count in totals(cases).items()]
            cases_text = [f"{len(cases)} cases"] if len(cases) > 1 else []
            lines.append(f"| {row.says} | `{row.test}` | {', '.join(cases_text + counts)} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    return re.sub(
        r"(<!-- counts: [^\n]* -->\n).*?(<!-- /counts -->)",
        lambda match: f"{match[1]}{table()}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
    sys.exit(0)
