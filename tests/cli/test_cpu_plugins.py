"""CPU plugins as an operator meets them: the how-to's own, which is installed here, and one that is missing."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nodeagent.cli.main import main
from nodeagent.cli.support.exit_status import EXIT_AWAY
from tests.support.machine_tree import Machine

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "cpu-plugins.md"
FILES = dict(re.findall(r'^```\w+ title="([^"]*)"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL))
MACHINE = "1s.4l.4c.2t"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the page's files, in which its plugin is installed as its pyproject.toml says."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    about = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (about / "entry_points.txt").write_text("".join(groups))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def explained(capsys: pytest.CaptureFixture[str], config: str, *more: str) -> dict[str, Any]:
    words = ("explain", "-f", "pod.yaml", "--config", config, "--topology", MACHINE, "-o", "json", *more)
    found: dict[str, Any] = json.loads(said(capsys, *words))["pods"][0]
    return found


@pytest.mark.usefixtures("here")
def test_the_pages_plugin_has_thirty_lines_and_keeps_the_first_cores_free(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(FILES["keep_first.py"].splitlines()) <= 31
    pod = explained(capsys, "keep.yaml")
    assert [container["cpus"] for container in pod["containers"]] == ["2-3,18-19"]
    assert pod["steps"][-1]["answers"] == [
        {"cpus": "2-15,18-31", "plugin": "keep-first", "point": "Filter", "score": None}
    ]
    Path("pod.yaml").write_text(FILES["pod.yaml"].replace('cpu: "4"', 'cpu: "30"'))
    pod = explained(capsys, "keep.yaml")
    assert [container["cpus"] for container in pod["containers"]] == ["1-15,17-31"]
    assert [answer["point"] for answer in pod["steps"][-1]["answers"]] == ["Filter", "PostFilter"]


@pytest.mark.usefixtures("here")
def test_what_a_plugin_leaves_for_hints_stands_above_the_merge(capsys: pytest.CaptureFixture[str]) -> None:
    Path("keep.yaml").write_text(FILES["keep.yaml"] + "topologyManagerPolicy: single-numa-node\n")
    Path("pod.yaml").write_text(FILES["pod.yaml"].replace('cpu: "4"', 'cpu: "14"'))
    words = ("explain", "-f", "pod.yaml", "--config", "keep.yaml", "--topology", "2s.8c.2t")
    assert main(words) != 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if "keep-first, Filter" in line)
    assert lines[at].strip() == "keep-first, Filter  leaves 2-7,10-15,18-23,26-31"
    assert lines[at + 1].split() == ["NUMA", "cpu", "memory"]


def test_what_a_plugin_prints_is_no_part_of_the_answer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "keep_first.py").write_text(
        FILES["keep_first.py"].replace(
            "        kept = CpuSet()\n", "        kept = CpuSet()\n        self.cores == 3 and print('here I am')\n"
        )
    )
    sys.modules.pop("keep_first", None)  # it was imported from another test's directory
    (here / "keep.yaml").write_text(FILES["keep.yaml"].replace('cores: "2"', 'cores: "3"'))
    words = ("simulate", "-f", "pod.yaml", "--config", "keep.yaml", "--topology", MACHINE, "-o", "json")
    assert main(words) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)
    assert "here I am" in shown.err


def test_options_are_judged_and_what_is_missing_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "keep.yaml").write_text(FILES["keep.yaml"].replace('cores: "2"', "cores: two"))
    assert main(("config", "validate", "keep.yaml")) != 0
    assert (
        "keep.yaml:4: cpuManagerPlugins[0]: CPU plugin keep-first refuses its options: it has one option, cores:"
        in (capsys.readouterr().err)
    )
    (here / "keep.yaml").write_text(FILES["keep.yaml"].replace("keep-first", "kept-elsewhere"))
    for words in (("simulate", "-f", "pod.yaml"), ("explain", "-f", "pod.yaml")):
        assert main((*words, "--config", "keep.yaml", "--topology", MACHINE)) != 0
        shown = capsys.readouterr().err
        assert "keep.yaml: cpuManagerPlugins[0]: CPU plugin kept-elsewhere is not installed" in shown
        assert "hint: install the node's plugin and its entry point on this machine" in shown


def test_a_capture_names_the_plugins_and_without_them_nothing_is_decided_on_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Machine(cores=tuple("01234567"), packages=("0-7",)).grow(here / "root")
    config = root / "etc" / "nodeagent"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text(FILES["node.yaml"].replace("0,16", "0"))
    assert main(("capture", "--root", str(root), "--out", "node.json")) == 0
    text = (here / "node.json").read_text()
    assert json.loads(text)["agent"]["config"]["cpuManagerPlugins"] == [{"name": "spread-caches", "options": {}}]
    capsys.readouterr()
    assert "CPU plugins spread-caches" in said(capsys, "explain", "-f", "pod.yaml", "--machine", "node.json")
    (here / "node.json").write_text(text.replace("spread-caches", "kept-elsewhere"))
    assert main(("inspect", "--machine", "node.json")) == EXIT_AWAY
    assert capsys.readouterr().out
    assert main(("simulate", "-f", "pod.yaml", "--machine", "node.json")) != 0
    assert (
        "the node's configuration: cpuManagerPlugins[0]: CPU plugin kept-elsewhere is not installed"
        in capsys.readouterr().err
    )


def test_scenarios_name_plugins_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = json.loads((ROOT / "examples" / "scenario.jsonl").read_text().splitlines()[0])
    for cpu in scenario["topology"]["cpus"]:
        cpu["uncore"] = int(cpu["core"] in {0, 3})
    scenario["steps"][0]["pod"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "4"
    scenario["config"]["cpuManagerPlugins"] = [{"name": "spread-caches"}]
    (here / "scenario.jsonl").write_text(json.dumps(scenario) + "\n")
    assert '\\"app\\":\\"1,3,5,7\\"' in said(capsys, "simulate", "scenario.jsonl", "-o", "json")
    (here / "scenario.jsonl").write_text(json.dumps(scenario).replace("spread-caches", "kept-elsewhere") + "\n")
    assert main(("simulate", "scenario.jsonl")) != 0
    assert "CPU plugin kept-elsewhere is not installed" in capsys.readouterr().err
