"""What the bounds on a user's jobs say yes and no to."""

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.job_bounds import find_exceeded_bound
from nodeagent.core.model.config import JobBounds
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import QuietRequest, QuietSettings
from tests.support.pods import cgroup_only, pod

FOUR = JobBounds("runners", max_cpus=Quantity.of(4), max_memory=Quantity.parse("1Gi"), max_per_user=2)
SMALL = pod("small", cgroup_only("main", cpu="1500m", memory="256Mi"))


@pytest.mark.parametrize(
    ("bounds", "held", "cpu", "memory", "said"),
    [
        (FOUR, 0, "4", "1Gi", None),
        (FOUR, 0, "4001m", "1Gi", "your jobs would have 4001m CPUs together; your limit is 4 (jobs.maxCPUs)"),
        (FOUR, 1, "2500m", "768Mi", None),
        (FOUR, 1, "3", "64Mi", "your jobs would have 4500m CPUs together"),
        (
            FOUR,
            1,
            "1",
            "769Mi",
            "your jobs would have 1025Mi of memory and huge pages together; your limit is 1Gi (jobs.maxMemory)",
        ),
        (FOUR, 2, "1m", "1", "you would have 3 jobs at a time; your limit is 2 (jobs.maxPerUser)"),
        (JobBounds("runners"), 9, "1000", "100Ti", None),
        (JobBounds("runners"), 10, "1", "1", "your limit is 10 (jobs.maxPerUser)"),
    ],
)
def test_what_a_user_may_have(bounds: JobBounds, held: int, cpu: str, memory: str, said: str | None) -> None:
    asked = pod("asked", cgroup_only("main", cpu=cpu, memory=memory))
    answer = find_exceeded_bound(bounds, [SMALL] * held, asked)
    assert (answer is None) == (said is None)
    assert (said or "") in (answer or "")


def test_idle_siblings_count_and_the_text_says_so() -> None:
    quiet = QuietRequest(settings=QuietSettings(idle_siblings=True))
    asked = replace(pod("asked", cgroup_only("main", cpu="6", memory="64Mi")), quiet=quiet)
    said = "your jobs would have 6 CPUs together, idle siblings included; your limit is 4 (jobs.maxCPUs)"
    assert find_exceeded_bound(FOUR, (), asked) == said


def test_huge_pages_count_as_memory() -> None:
    asked = pod("asked", cgroup_only("main", cpu="1", memory="512Mi", hugepages_2Mi="514Mi"))
    assert "1026Mi of memory and huge pages" in (find_exceeded_bound(FOUR, (), asked) or "")


def test_what_a_reservation_has_does_not_count_for_the_jobs_in_it() -> None:
    asked = pod("asked", cgroup_only("main", cpu="6", memory="900Mi"))
    assert "6 CPUs" in (find_exceeded_bound(FOUR, (), asked) or "")
    assert find_exceeded_bound(FOUR, (), asked, {asked.uid: {"cpu"}}) is None
    assert "1156Mi of memory" in (find_exceeded_bound(FOUR, [SMALL], asked, {asked.uid: {"cpu"}}) or "")
    assert find_exceeded_bound(FOUR, [SMALL], asked, {asked.uid: {"cpu", "memory"}}) is None
