"""Each next step that the program gives: a test carries it out and shows that it cures, or a line says why none does.

A hint without a line fails, as does a line that no hint needs, or that names a test that isn't there. Each `nodeagent` command in a hint
can be given.
"""

import ast
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cli.parser import build_parsers
from nodeagent.core.admission.node_capacity import Allocatable, insufficient, usage_of
from nodeagent.core.model.config import CpuPlugin, Placement
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.problem_kinds import EXPLAINED
from nodeagent.views.check.node_check import run_checks
from nodeagent.views.wording.refusal_advice import ADVISED_REASONS, advise_next_step
from scripts.reference_errors import list_hints
from tests.project.test_every_error import BY_POD, ONE_NODE, STATIC, WHOLE_CORES, WITHOUT_PLUGIN, Strict, big
from tests.support.claims import claiming, request, template
from tests.support.inspected_nodes import World
from tests.support.pods import app, exclusive, pod
from tests.views.check.test_check import CASES

ROOT = Path(__file__).parents[2]
LOOK = "it says where to look, and changes nothing"
ARGUMENT = "it names another argument of a command, which says what it does there"
PERSON = "a person has to decide or to edit what the program doesn't know"
ELSEWHERE = "it changes a host, a kernel, a package or a program that isn't the agent's"
AGAIN = "nothing is to be changed: the same succeeds once something else has ended"
AS_ROOT = "it is the same command, by root"

STEP = "tests/cli/test_advised_steps.py::test_{}"
FILES = STEP.format("what_is_advised_about_a_file_cures")
LOSSY = "tests/formats/checkpoint/test_checkpoint_versions.py::test_what_cannot_be_said_is_left_out_only_if_told_so"
STRICT = "tests/daemon/test_recovery.py::test_what_a_strict_start_advises_cures"
PACKAGE = "integration/test_debian_package.py::test_a_package_comes_is_upgraded_under_a_pod_and_goes_without_one"
RELEASE = "integration/test_release.py::test_a_node_without_an_agent_is_given_back_whole"
ORPHANS = "tests/cli/test_release.py::test_without_an_agent_the_hosts_settings_go_back_although_a_process_runs_that_no_pod_owns"
PINNED = "integration/test_pinned_units.py::test_whatever_way_everything_is_stopped_everything_goes_back"
RESIZE = "tests/core/turn/test_resizes.py::test_one_that_does_not_fit_yet_is_resized_when_others_have_gone_and_before_new_ones"
RESERVED = "tests/daemon/test_reservations.py::test_other_jobs_leave_it_its_room_and_its_own_run_in_it_until_its_end"
OWN_UID = "tests/core/turn/test_containers.py::test_a_pod_with_the_uid_of_one_from_a_manifest_is_refused_until_the_manifest_has_another"
OWN_UNIT = "tests/core/turn/test_unit_pods.py::test_the_second_pod_for_a_unit_is_refused_until_the_other_one_has_ended"
INFEASIBLE = (
    "tests/core/turn/test_resizes.py::test_a_pod_that_can_not_be_resized_is_admitted_with_its_new_amounts_after_its_end"
)
PAGES = "tests/views/check/test_check.py::test_the_command_for_huge_pages_is_enough"
RUNTIME = "tests/views/check/test_check.py::test_the_line_that_is_advised_for_containerd_mends_it"
CURES = "tests/project/test_next_steps.py::test_what_a_refusal_advises_cures"
AWAY = "integration/test_service.py::test_inspect_shows_what_differs_while_the_agent_is_away"
MISHAP = "integration/test_mishaps.py::test_each_mishap_is_named_right_and_over_once_it_is_mended"
UNIT = "integration/test_service.py::test_the_pods_unit_stops_and_starts"
CONFIG = (
    "integration/test_service.py::test_a_wrong_configuration_leaves_no_node_without_an_agent_and_is_told_everywhere"
)
DISK = "integration/test_faults.py::test_a_disk_that_takes_nothing_refuses_the_pod_and_leaves_the_others_alone"
KIND = "tests/daemon/test_problem_kinds.py::test_what_is_wrong_is_told_by_any_one_of_four_and_is_over_once_it_is_mended"

STEPS: tuple[tuple[str, str], ...] = (
    (r"name another file with --html", "tests/cli/test_run_report.py::test_a_page_does_not_replace_a_report"),
    (r"start (it|the agent) with `systemctl start nodeagent`", AWAY),
    (r"systemctl reload nodeagent-launcher|`systemctl restart nodeagent` makes the directory", MISHAP),
    (r"systemctl start nodeagent-pods", UNIT),
    (r"correct the file, then `nodeagent config reload`", CONFIG),
    (r"`nodeagent config reload`, or undo the change", KIND),
    (r"make room(:|, or mount)|mount the file system read-write", DISK),
    (r"correct the manifest; the agent reads it again", KIND),
    (r"bring the missing CPUs|bring the CPUs online|or bring offline CPUs back|make room and run `nodeagent retry", KIND),
    (r"has its output; correct the program|prints the command that ends them", KIND),
    (r"raise the (disk )?quota", ELSEWHERE),
    (r"the agent tries again by itself$|^the problem names", LOOK),
    (r"^end a pod, or|request fewer|raise the pod's cpu|request a number of CPUs that whole cores have", CURES),
    (r"let the pod prefer such cores|request less of it|the message names the request with too few", CURES),
    (r"remove it from cpuManagerPlugins|remove the plugin from cpuManagerPlugins", CURES),
    (r"a directory is where|a symbolic link is where|a device, FIFO|never writes such a large|a file is where", FILES),
    (r"make runtimeDirectory|the socket's directory must|a file has the name of the socket's directory", FILES),
    (r"stop it \(`systemctl stop nodeagent`\), or", STEP.format("a_state_in_use_is_free_when_its_agent_is_stopped_and_so_is_another")),
    (r"move it away \(`mv", STEP.format("a_file_that_is_not_replaced_can_be_moved_by_the_command_that_is_told")),
    (r"put all pods of", STEP.format("a_file_with_other_pods_is_replaced_by_one_with_all_of_them_or_edited")),
    (r"apply each of them from a file", STEP.format("pods_of_several_manifests_are_applied_one_by_one_or_when_the_extra_ones_are_removed")),
    (r"or first remove the link", STEP.format("a_links_target_is_changed_or_the_link_removed_first")),
    (r"remove metadata.uid", STEP.format("a_uid_of_another_pod_is_removed_or_changed")),
    (r"^rename …", STEP.format("where_all_names_are_taken_the_file_is_renamed_or_a_manifest_removed")),
    (r"to end all of them:", STEP.format("all_pods_of_a_file_are_named_or_it_is_edited")),
    (r"remove one of the two manifests, then", STEP.format("of_a_pod_that_is_given_twice_one_is_removed")),
    (r"convert it first|compare another file with the state", STEP.format("a_file_of_version_1_is_converted_and_then_compared")),
    (r"_manager_state or nodeagent_state, as in", STEP.format("what_has_no_content_for_a_version_is_taken_from_the_state")),
    (r"--lossy", LOSSY),
    (r"^set .* back to|move it away, then `systemctl start", STRICT),
    (r"configuration as far as possible", "tests/daemon/test_recovery.py::test_on_another_node_whoever_runs_stays_where_he_may"),
    (r"pods are not affected", "tests/daemon/test_config_file.py::test_what_only_a_restart_can_apply_is_told_with_that_step"),
    (r"a damaged state is rebuilt", "integration/test_faults.py::test_a_damaged_state_is_set_aside_and_made_anew_of_what_runs"),
    (r"after an upgrade, restart the agent", PACKAGE),
    (r"start nodeagent-launcher`, then try again", RELEASE),
    (r"first: `systemctl stop nodeagent`", RELEASE),
    (r"end them: `echo 1 \| tee", ORPHANS),
    (r"try again: `nodeagent release --host-settings`", PINNED),
    (r"to start it again while", "tests/cli/test_release.py::test_it_stays_ended_over_restarts_until_retry_or_another_manifest"),
    (r"what the first waiting job lacks", "tests/daemon/test_jobs.py::test_a_waiting_job_that_leaves_lets_the_next_one_start"),
    (r"what the message names", "tests/daemon/test_jobs.py::test_waiting_jobs_start_first_come_first_served"),
    (r"with which it ends before|let the job end before|lists the reservations with their times", RESERVED),
    (r"end the other pod \(", OWN_UNIT),
    (r"undo the resize", INFEASIBLE),
    (r"give the manifest another UID", OWN_UID),
    (r"the resize is retried", RESIZE),
)  # fmt: skip
"""Part of hints, and the test that does what they say, or the reason why none does. The first line that matches counts."""
LISTED = ROOT / "tests/project/hints_without_a_test.txt"
"""Every other hint, below the reason why no test does what it says."""


@cache
def hints() -> tuple[str, ...]:
    advice = [advise_next_step(reason, "POD").partition("; `nodeagent explain POD`")[0] for reason in ADVISED_REASONS]
    advice.append(advise_next_step("SMTAlignmentError", "POD", "not multiple cpus per core"))
    advice.append(advise_next_step("WaitingForReservation", "POD", "reservation a has not begun"))
    found = [*list_hints(), *(one.mended_by for one in EXPLAINED.values()), *advice]
    return tuple(sorted(dict.fromkeys(found)))


def line_of(hint: str) -> tuple[str, str] | None:
    return next((line for line in STEPS if re.search(line[0], hint)), None)


def test_each_hint_has_a_test_or_a_reason() -> None:
    assert len(hints()) > 150
    listed = [line for line in LISTED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("# ")]
    assert sorted(hint for hint in hints() if line_of(hint) is None) == sorted(listed)
    needed = {line_of(hint) for hint in hints()}
    assert [part for part, *_ in STEPS if part not in {line[0] for line in needed if line}] == []


def test_the_tests_that_carry_hints_out_are_there() -> None:
    for named in {outcome for _, outcome in (*STEPS, *FIXES) if "::" in outcome}:
        file, _, name = named.partition("::")
        functions = {
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        }
        assert name in functions, named


COMMANDS = sorted(
    {
        command
        for hint in hints()
        for quoted in re.findall(r"`([^`]*)`", hint)
        for command in re.findall(r"nodeagent [a-z][^;|&]*", quoted)
        if "systemctl" not in quoted and "journalctl" not in quoted and "usermod" not in quoted
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_in_a_hint_can_be_given(command: str) -> None:
    """Variable parts, which stand as `…`, are words. A command's name alone only names the command."""
    words = shlex.split(command.removesuffix("…").replace("…", "cpu-v2"))[1:]
    parser, known = build_parsers(words[:1])
    assert words[0] in known
    if len(words) > 1 and words[1:] != ["--help"] and not command.endswith("…"):
        _, unknown = parser.parse_known_args(words)
        assert unknown == []


def admits(placement: Placement, new: Pod) -> bool:
    return World(placement=placement).add(new).state.entries[0].refusal is None


def has_room(new: Pod, pods: int = 10, **room: int) -> bool:
    amounts = {"cpu": 9000, "memory": 2**40} | room
    return insufficient(new, usage_of(()), Allocatable(pods, tuple(sorted(amounts.items())))) is None


def with_claim(count: int) -> Pod:
    return replace(claiming("big", str(count), template(request("cpus", count=count))), uid="uid-big")


def beside_shared(cpu: str) -> Pod:
    return pod(
        "big", app("app", cpu="2", memory="64Mi"), app("rest"), resources=exclusive(cpu=cpu, memory="256Mi")
    )  # fmt: skip


STRICT = replace(STATIC, cpu_plugins=(CpuPlugin("strict", code=Strict()),))
ANY_CLASS = replace(big("2"), core_class="efficiency")


@pytest.mark.parametrize(
    ("refused", "cured"),
    [
        pytest.param(lambda: admits(ONE_NODE, big("6")), lambda: admits(ONE_NODE, big("2")), id="fewer CPUs"),
        pytest.param(lambda: admits(ONE_NODE, big("6")), lambda: admits(STATIC, big("6")), id="a laxer policy"),
        pytest.param(lambda: admits(WHOLE_CORES, big("3")), lambda: admits(WHOLE_CORES, big("2")), id="whole cores"),
        pytest.param(lambda: admits(WHOLE_CORES, big("3")), lambda: admits(WHOLE_CORES, big("4")), id="more whole cores"),
        pytest.param(lambda: admits(BY_POD, beside_shared("2")), lambda: admits(BY_POD, beside_shared("3")), id="a pod's CPU"),
        pytest.param(lambda: admits(STATIC, big("8")), lambda: admits(STATIC, big("7")), id="less of what was short"),
        pytest.param(lambda: admits(STATIC, ANY_CLASS), lambda: admits(STATIC, big("2")), id="cores of any class"),
        pytest.param(lambda: admits(STATIC, with_claim(9)), lambda: admits(STATIC, with_claim(6)), id="fewer devices"),
        pytest.param(lambda: admits(WITHOUT_PLUGIN, big("2")), lambda: admits(STATIC, big("2")), id="without a plugin"),
        pytest.param(lambda: admits(STRICT, big("2")), lambda: admits(STATIC, big("2")), id="without a strict plugin"),
        pytest.param(lambda: has_room(big("2"), cpu=1500), lambda: has_room(big("1"), cpu=1500), id="less cpu"),
        pytest.param(lambda: has_room(big(), pods=0), lambda: has_room(big(), pods=1), id="maxPods"),
        pytest.param(lambda: has_room(big(), memory=1), lambda: has_room(big(), memory=2**26), id="memory"),
    ],
)  # fmt: skip
def test_what_a_refusal_advises_cures(refused: Callable[[], bool], cured: Callable[[], bool]) -> None:
    assert (refused(), cured()) == (False, True)


SETTING = (
    "integration/test_capture_live.py::test_each_fix_of_a_kernel_setting_works_as_it_is_told_and_so_does_its_way_back"
)
LINE = "tests/views/check/test_check.py::test_the_line_that_is_advised_for_the_configuration_mends_it"
RESERVATION = (
    "tests/views/check/test_check.py::"
    "test_the_reservation_that_is_advised_keeps_pods_off_the_memory_of_nodes_without_cpus"
)
CONFIG_START = "tests/views/check/test_check.py::test_the_command_for_a_missing_configuration_brings_one_and_its_undoing_removes_it"
ONLINE = "tests/views/check/test_check.py::test_the_command_for_offline_cpus_brings_all_of_them_online"
FIXES: tuple[tuple[str, str], ...] = (
    (r"disable --now", ELSEWHERE),
    (r"nr_hugepages", PAGES),
    (r"GRUB_CMDLINE_LINUX|kubelet 1\.37|kubelet's configuration", ELSEWHERE),
    (r"examples/config.yaml", CONFIG_START),
    (r"cpu(\d+|\$n)/online", ONLINE),
    (r"undo: |^setarch ", SETTING),
    (r"^memoryManagerPolicy: Static, ", RESERVATION),
    (r"^\w+: [^;]* in the configuration", LINE),
    (r"sudo systemctl start nodeagent-pods", UNIT),
    (r"sudo systemctl restart nodeagent", CONFIG),
    (r"^(before 2\.0: )?(disable = false|plugin_re\w+ = )", RUNTIME),
    (r"apt install|kernel 6\.7|the command line|is required|containerd|BIOS", ELSEWHERE),
    (
        r"reserve CPUs on several|CPUs that are not isolated|change devices|hostIsolation|nodeagent config|taskset",
        PERSON,
    ),
    (
        r"systemctl status|dmesg|sudo nodeagent check|checkpoint show|journalctl|nodeagent inspect",
        LOOK,
    ),
)
"""The same for the fixes that `nodeagent check` advises."""


def fix_line(fix: str) -> tuple[str, str] | None:
    return next((line for line in FIXES if re.search(line[0], fix)), None)


def test_each_fix_of_a_check_has_a_test_or_a_reason() -> None:
    fixes = {
        result.fix for case in CASES for result in run_checks(case.facts) if len(result.fix) > 1
    }  # one is a stand-in for the hint of another error
    assert len(fixes) > 30
    assert sorted(fix for fix in fixes if fix_line(fix) is None) == []
    assert [part for part, _ in FIXES if part not in {line[0] for fix in fixes if (line := fix_line(fix))}] == []
