"""What `promtool check metrics` finds in the exposition: kubelet's own names and nothing else.

promtool is in Debian's package `prometheus`, which the guests have. Its findings go to stderr, one a line, and its exit status is 3 if
there are any.
"""

from collections.abc import Callable

KUBELETS_NAMES: frozenset[str] = frozenset(
    {
        'kubelet_container_aligned_compute_resources_count counter metrics should have "_total" suffix',
        'kubelet_container_aligned_compute_resources_count non-histogram and non-summary metrics should not have "_count" suffix',
        'kubelet_container_aligned_compute_resources_failure_count counter metrics should have "_total" suffix',
        "kubelet_container_aligned_compute_resources_failure_count non-histogram and non-summary metrics should not have "
        '"_count" suffix',
        'kubelet_cpu_manager_exclusive_cpu_allocation_count non-histogram and non-summary metrics should not have "_count" suffix',
        "kubelet_topology_manager_admission_duration_ms metric names should not contain abbreviated units",
        'resource_manager_container_assignments counter metrics should have "_total" suffix',
    }
)
OLD_NAMES: frozenset[str] = frozenset(
    {
        'cpu_manager_exclusive_cpu_allocation_count non-histogram and non-summary metrics should not have "_count" suffix',
        "topology_manager_admission_duration_ms metric names should not contain abbreviated units",
    }
)
"""Found only with `metricsAliases`."""

FOUND_SOMETHING = 3
"""promtool's exit status for findings; others are failures to read the text."""

COMMAND = ("sh", "-c", "curl --fail --silent --show-error http://127.0.0.1:9753/metrics | promtool check metrics")


def check_findings(run: Callable[[tuple[str, ...]], tuple[int, str]], *, aliases: bool = True) -> None:
    """Assert that promtool's findings are exactly the known ones.

    Args:
        run: runs a command where the agent and promtool are, and gives its exit status and stderr.
        aliases: whether `metricsAliases` is on there.

    """
    status, errors = run(COMMAND)
    expected = KUBELETS_NAMES | (OLD_NAMES if aliases else frozenset())
    assert frozenset(errors.splitlines()) == expected, errors
    assert status == FOUND_SOMETHING
