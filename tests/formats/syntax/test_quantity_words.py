"""What is offered in the place of an amount in a unit that Kubernetes hasn't."""
# ruff: noqa: E501 (tables: one case, one line)

import pytest

from nodeagent.core.model.quantity import Quantity
from nodeagent.formats.manifest.pod_manifest import RefusedPod, parse_manifest
from nodeagent.formats.syntax.quantity_words import explain_no_quantity

PLAIN = "must be a quantity such as 2, 500m or 1Gi"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64MB", "MB is not a unit: 64M or 64Mi"),
        ("64mb", "mb is not a unit: 64M or 64Mi"),
        ("1.5GB", "GB is not a unit: 1.5G or 1.5Gi"),
        ("64MiB", "MiB is not a unit: 64Mi"),
        ("64mi", "mi is not a unit: 64Mi"),
        ("64K", "K is not a unit: 64k or 64Ki"),
        ("64 Mi", "must have no blank before the unit: 64Mi"),
        ("64 MB", "MB is not a unit: 64M or 64Mi"),
        ("64 bytes", "bytes is not a unit: 64"),
        ("2cores", PLAIN),
        ("MB", PLAIN),
        ("-1MB", PLAIN),
        ("", PLAIN),
        ("9" * 900_000, PLAIN),
    ],
)
def test_the_amount_that_was_meant_is_named(text: str, said: str) -> None:
    assert explain_no_quantity(text) == said
    for offered in said.rpartition(": ")[2].split(" or ") if said != PLAIN else ():
        assert Quantity.parse(offered).nano > 0


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
  - name: c
    resources:
      limits:
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("        memory: 64MB\n", 'a.yaml:9: spec.containers[0].resources.limits[memory]: "64MB": MB is not a unit: 64M or 64Mi'),
        ("        cpus: 1\n", "a.yaml:9: spec.containers[0].resources.limits[cpus]: is not a resource of this node, did you mean cpu?"),
        ("        mem: 1\n", "a.yaml:9: spec.containers[0].resources.limits[mem]: is not a resource of this node, did you mean memory?"),
        ("        disk: 1\n", "a.yaml:9: spec.containers[0].resources.limits[disk]: is not a resource of this node: cpu, memory and hugepages-<size> are"),
        ("\tcpu: 1\n", "a.yaml:9: a tab in column 1 indents this line: YAML takes spaces only"),
        ("      \tcpu: 1\n", "a.yaml:9: a tab in column 7 indents this line: YAML takes spaces only"),
    ],
)  # fmt: skip
def test_a_manifest_says_what_to_write_instead(line: str, said: str) -> None:
    (refused,) = parse_manifest(f"{POD}{line}".encode(), "a.yaml")
    assert isinstance(refused, RefusedPod)
    assert [str(finding) for finding in refused.findings] == [said]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_may_come_of_a_full_disk(content: bytes) -> None:
    (refused,) = parse_manifest(content, "a.yaml")
    assert isinstance(refused, RefusedPod)
    (finding,) = refused.findings
    assert str(finding) == (
        "a.yaml:1: is empty, perhaps because the disk was full (see `df`): write a pod, or remove the file to end the pods it had"
    )
