"""What `promtool check metrics` finds in the exposition: kubelet's own names and nothing else.

promtool is in Debian's package `prometheus`, which the guests have. Its findings go to stderr, one a line, and its exit status is 3 if
there are any.
"""

from collections.abc import Callable

_NO_TOTAL = 'counter metrics should have "_total" suffix'
_COUNT = 'non-histogram and non-summary metrics should not have "_count" suffix'
_ABBREVIATED = "metric names should not contain abbreviated units"

KUBELETS_NAMES: frozenset[tuple[str, str]] = frozenset(
    {
        ("kubelet_container_aligned_compute_resources_count", _NO_TOTAL),
        ("kubelet_container_aligned_compute_resources_count", _COUNT),
        ("kubelet_container_aligned_compute_resources_failure_count", _NO_TOTAL),
        ("kubelet_container_aligned_compute_resources_failure_count", _COUNT),
        ("kubelet_cpu_manager_exclusive_cpu_allocation_count", _COUNT),
        ("kubelet_topology_manager_admission_duration_ms", _ABBREVIATED),
        ("resource_manager_container_assignments", _NO_TOTAL),
    }
)
OLD_NAMES: frozenset[tuple[str, str]] = frozenset(
    {
        ("cpu_manager_exclusive_cpu_allocation_count", _COUNT),
        ("topology_manager_admission_duration_ms", _ABBREVIATED),
    }
)
"""Found only with `metricsAliases`."""

FOUND_SOMETHING = 3
"""promtool's exit status for findings; others are failures to read the text."""

_SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9753/metrics').read().decode(), end='')"
COMMAND = ("sh", "-c", f'python3 -c "{_SCRAPE}" | promtool check metrics')


def check_findings(run: Callable[[tuple[str, ...]], tuple[int, str]], *, aliases: bool = True) -> None:
    """Assert that promtool's findings are exactly the known ones.

    Args:
        run: runs a command where the agent and promtool are, and gives its exit status and stderr.
        aliases: whether `metricsAliases` is on there.

    """
    status, errors = run(COMMAND)
    expected = KUBELETS_NAMES | (OLD_NAMES if aliases else frozenset())
    assert {tuple(line.split(" ", 1)) for line in errors.splitlines()} == expected, errors
    assert status == FOUND_SOMETHING
