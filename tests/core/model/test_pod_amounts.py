"""What `explain` names as a pod's own amount is one that a manifest may have."""

import pytest

from nodeagent.core.model.pod import CPU, Pod
from nodeagent.core.model.pod_amounts import find_least_pod_amount, is_within_budget, with_amounts
from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest

SIDECAR, INIT, APP = "{name: s, restartPolicy: Always, %s}", "{name: i, command: [run], %s}", "{name: a, %s}"


def amounts(request: str, limit: str) -> str:
    return f"resources: {{requests: {{cpu: '{request}', memory: 1Gi}}, limits: {{cpu: '{limit}', memory: 1Gi}}}}"


def text(own: str, *, init: str = "3", limit: str = "1") -> str:
    first = ", ".join((SIDECAR % amounts("1", "1"), INIT % amounts(init, init)))
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
        f"  resources: {{requests: {{cpu: '{own}', memory: 4Gi}}, limits: {{cpu: '{own}', memory: 4Gi}}}}\n"
        f"  initContainers: [{first}]\n  containers: [{APP % amounts('1', limit)}]\n"
    )


def read(manifest: str) -> Pod | None:
    (found,) = parse_manifest(manifest.encode(), "pod.yaml")
    return found.pod if isinstance(found, ManifestPod) else None


@pytest.mark.parametrize(
    ("init", "limit", "least"),
    [
        pytest.param("3", "1", 4, id="an init container beside the sidecar before it"),
        pytest.param("1", "1", 2, id="app and sidecar"),
        pytest.param("1", "4", 4, id="a container's limit"),
    ],
)
def test_the_least_own_amount_is_the_least_that_a_manifest_may_have(init: str, limit: str, least: int) -> None:
    pod = read(text("6", init=init, limit=limit))
    assert pod is not None
    for own in range(1, 7):
        tried = with_amounts(pod, None, {CPU: own * 1000})
        assert is_within_budget(tried) == (own >= least) == (read(text(str(own), init=init, limit=limit)) is not None)
    assert find_least_pod_amount(pod, CPU) <= least * 1000
