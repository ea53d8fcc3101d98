"""Rules, dashboard and scrape configuration of contrib/ ask for nothing that the agent doesn't export."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from integration.contrib import (
    CONTRIB,
    PROMETHEUS,
    PanelQuery,
    Rule,
    dashboard,
    filled_in,
    named_labels,
    panel_queries,
    rules,
)
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import RestartPolicy
from nodeagent.daemon.domains.jobs.job_queue import JobQueue
from nodeagent.daemon.reports import container_pressure
from nodeagent.edge.kernel.usage import PressureText
from tests.daemon.test_memory_changes import MEMORY, with_memory
from tests.support.builders import GIB
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, cgroup_only, init, pod
from tests.support.promql import read
from tests.support.world import SMALL, node

Exported = Mapping[str, Mapping[str, frozenset[str]]]
"""Metric → label → the values it has."""
TARGET_LABELS = frozenset({"instance", "job"})
RULES, QUERIES = rules(), panel_queries()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """What the daemon exposes after it has admitted a pod and refused another."""
    machine = Machine(node(with_memory(8 * GIB, 8 * GIB), **MEMORY))
    daemon = Daemon(machine, tmp_path_factory.mktemp("daemon"), steps=Steps())
    pressure = PressureText("nr_throttled 1\n", {"cpu": "some total=1\nfull total=0\n"})
    with pytest.MonkeyPatch.context() as patch, watched(patch, machine, daemon.steps):
        patch.setattr(container_pressure, "read_pressure", lambda _path: pressure)
        agent = daemon.start()
        daemon.files.pods = (
            pod("one", app(cpu="1", memory="1Gi")),
            pod("shares", app(cpu="100m")),
            pod("big", app(cpu="99")),
        )
        daemon.rest()
        agent.metrics.latest_starts = asyncio.run(JobQueue(daemon.jobs, agent).measure_starts())
        text = agent.metrics.exposition.text().decode()
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for line in text.splitlines():
        sample = re.fullmatch(r"(\w+)(?:\{(.*)\})? \S+", line)
        if sample is not None:  # read as it stands: the client's own parser puts `_total` behind every counter
            labels = found.setdefault(sample[1], {})
            for label, value in re.findall(r'(\w+)="([^"]*)"', sample[2] or ""):
                labels.setdefault(label, set()).add(value)
    return {name: {label: frozenset(v) for label, v in labels.items()} for name, labels in found.items()}


@pytest.fixture(scope="module")
def known(exported: Exported) -> Mapping[str, frozenset[str]]:
    """Metric → labels, of what is exported and of what the rules record."""
    labels = {name: frozenset(values) | TARGET_LABELS for name, values in exported.items()}
    for rule in RULES:
        if not rule.is_alert:
            labels[rule.name] = frozenset().union(*(labels[metric] for metric in read(rule.expression).metrics))
    return labels


def check(expression: str, texts: tuple[str, ...], exported: Exported, known: Mapping[str, frozenset[str]]) -> None:
    query = read(expression)
    assert query.selectors
    assert query.metrics <= known.keys(), query.metrics - known.keys()
    there = frozenset().union(*(known[metric] for metric in query.metrics))
    assert query.grouped_by <= there, query.grouped_by - there
    for selector in query.selectors:
        for matcher in selector.matchers:
            assert matcher.label in known[selector.metric], f"{selector.metric} has no label {matcher.label}"
            if matcher.label not in TARGET_LABELS:
                values = exported[selector.metric][matcher.label]
                asked = matcher.value.split("|") if matcher.operator in {"=~", "!~"} else [matcher.value]
                assert set(asked) <= values, f"{selector.metric} has no {matcher.label} {set(asked) - values}"
    for text in texts:
        own = named_labels(text) - {"value"}
        assert own <= there, f"{text}: no label {own - there}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_asks_for_what_the_agent_exports(
    rule: Rule, exported: Exported, known: Mapping[str, frozenset[str]]
) -> None:
    check(rule.expression, rule.texts, exported, known)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.panel}: {query.legend}")
def test_a_panel_asks_for_what_the_agent_exports(
    query: PanelQuery, exported: Exported, known: Mapping[str, frozenset[str]]
) -> None:
    check(filled_in(query.expression), (query.legend,), exported, known)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("nodeagent_podz > 0", "nodeagent_podz"),
        ('nodeagent_pods{fase="Failed"}', "no label fase"),
        ('nodeagent_pods{phase="Refused"}', "no phase {'Refused'}"),
        ("sum by (pod) (nodeagent_pods)", "pod"),
        ("kubelet_topology_manager_admission_duration_ms", "duration_ms"),
    ],
)
def test_a_query_for_what_is_not_exported_is_found(
    wrong: str, complaint: str, exported: Exported, known: Mapping[str, frozenset[str]]
) -> None:
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        check(wrong, (), exported, known)


@pytest.mark.parametrize("wrong", ["rat(up[5m])", "up{job}", "up{job='x'}", "rate", "sum by (job (up)"])
def test_what_is_no_query_is_found(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(wrong)


def test_every_metric_but_the_old_names_is_shown_or_watched(exported: Exported) -> None:
    """A new metric is worth a panel, or it is not worth exporting."""
    expressions = [rule.expression for rule in RULES] + [filled_in(query.expression) for query in QUERIES]
    used = frozenset().union(*(read(expression).metrics for expression in expressions))
    families = {re.sub("_(bucket|sum|count)$", "", name) if "duration" in name else name for name in used}
    ours = {
        re.sub("_(bucket|sum|count)$", "", name) if "duration" in name else name
        for name in exported
        if name.startswith(("nodeagent_", "kubelet_", "resource_manager_"))
    }
    assert ours <= families, ours - families


@pytest.mark.parametrize("strict", [False, True])
def test_the_alert_on_starved_containers_tells_a_full_node_from_one_where_they_starve(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only strict-cpu-reservation keeps shared containers from the reserved CPUs. Kubelet's gauge of the pool is 0 either way."""
    (alert,) = (rule for rule in RULES if rule.name == "NodeagentStarvedContainers")
    (watched_metric,) = read(alert.expression).metrics
    assert alert.expression == f"{watched_metric} > 0"
    options = (("strict-cpu-reservation", "true"),) if strict else ()
    machine = Machine(node(SMALL, cpu_manager_policy_options=options))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    free = str(len(SMALL.online) - 1)
    with watched(monkeypatch, machine, daemon.steps):
        agent = daemon.start()

        def exposed(metric: str) -> float:
            (value,) = re.findall(rf"^{metric} (\S+)$", agent.metrics.exposition.text().decode(), re.MULTILINE)
            return float(value)

        shared = pod("shared", init("done"), app(), app("again"), restart_policy=RestartPolicy.ON_FAILURE)
        daemon.files.pods = (shared,)
        daemon.rest()
        machine.exit(machine.run_of("done"))
        daemon.rest()
        machine.exit(machine.run_of("app"))
        machine.exit(machine.run_of("again"), 1)
        daemon.rest()
        assert exposed(watched_metric) == 0
        daemon.files.pods = (shared, pod("slot", cgroup_only()), pod("late", app("late")))
        daemon.rest()
        daemon.files.pods = (*daemon.files.pods, pod("full", app(cpu=free)))
        daemon.rest()
        assert exposed("kubelet_cpu_manager_shared_pool_size_millicores") == 0
        # of the first pod only what is to run again
        assert exposed(watched_metric) == (3 if strict else 0)
        assert machine.is_frozen(machine.path_of(machine.run_of("late"))) is strict
        daemon.files.pods = (shared,)
        daemon.rest()
        assert exposed(watched_metric) == 0


def test_recording_rules_are_named_by_level_metric_and_operation() -> None:
    for rule in RULES:
        if not rule.is_alert:
            assert re.fullmatch(r"[a-z_]+:nodeagent_[a-z_]+:[a-z0-9_]+", rule.name)
        else:
            assert re.fullmatch(r"Nodeagent[A-Z]\w+", rule.name)


def test_every_rule_has_a_test() -> None:
    tests = (PROMETHEUS / "nodeagent.tests.yml").read_text()
    assert [rule.name for rule in RULES if not re.search(rf"{re.escape(rule.name)}\b", tests)] == []
    fired = {
        expected["alertname"]
        for one in yaml.safe_load(tests)["tests"]
        for expected in one.get("alert_rule_test", ())
        if expected["exp_alerts"]
    }
    assert fired == {rule.name for rule in RULES if rule.is_alert}, "each alert is seen to fire"


def test_the_commands_that_alerts_advise_exist() -> None:
    from nodeagent.cli.parser import COMMANDS

    advised = {word for rule in RULES for text in rule.texts for word in re.findall(r"`nodeagent ([a-z]+)", text)}
    assert {"inspect", "retry", "check"} <= advised <= COMMANDS.keys()


def test_the_scrape_configuration_asks_where_the_agent_is_by_default() -> None:
    document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    assert job["job_name"] == "nodeagent", "the alerts ask for this name"
    assert job["static_configs"] == [{"targets": [Config().metrics_bind_address]}]
    assert all((PROMETHEUS / name).is_file() for name in document["rule_files"])


def test_the_dashboard_is_one_that_grafana_can_lay_out() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert [target["refId"] for target in panel["targets"]] == list("ABCDEFG"[: len(panel["targets"])])
            assert panel["fieldConfig"]["defaults"]["unit"]
    assert [variable["name"] for variable in dashboard()["templating"]["list"]] == ["datasource", "instance"]


def test_a_stack_counts_nothing_twice() -> None:
    """Whole cores are among the free CPUs, and tasks that all wait (full) are among those of which some wait."""
    for panel in dashboard()["panels"]:
        asked = " ".join(target["expr"] for target in panel.get("targets", ()))
        stacking = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {}).get("stacking", {})
        if "nodeagent_free_whole_cores" in asked or "_pressure_seconds_total" in asked:
            assert stacking["mode"] == "none", panel["title"]


def test_the_dashboard_is_kept_as_json_prints_it() -> None:
    """So that what Grafana exports can be compared."""
    path = CONTRIB / "grafana" / "nodeagent.json"
    assert path.read_text() == json.dumps(dashboard(), indent=2) + "\n"


def read_by_grafana(document: object) -> object:
    """Read a dashboard by the model that Grafana publishes of it, and write it again."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """Paths of what isn't there any more, or is something else."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [found for key in before for found in lost(before[key], after.get(key, "nothing"), f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [found for index, (one, other) in pairs for found in lost(one, other, f"{path}[{index}]")]
    return [] if before == after else [path]


def test_grafanas_own_model_knows_all_of_the_dashboard() -> None:
    # Grafana writes `definition` beside a variable's query, and its model leaves it out
    assert lost(dashboard(), read_by_grafana(dashboard())) == [".templating.list[1].definition"]


def test_grafanas_own_model_does_not_know_what_is_misspelt() -> None:
    wrong = dashboard()
    wrong["panels"][1]["options"]["reduceOption"] = wrong["panels"][1]["options"].pop("reduceOptions")
    wrong["panels"][1]["gridpos"] = wrong["panels"][1].pop("gridPos")
    assert {".panels[1].options.reduceOption", ".panels[1].gridpos"} <= set(lost(wrong, read_by_grafana(wrong)))
