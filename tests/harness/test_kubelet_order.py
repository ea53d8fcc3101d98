"""The no-overlap proof's negative control takes effect: a moved function would otherwise be found in a guest only."""

import sys

import pytest

from integration.overlap.kubelet_order import KubeletOrder, main
from nodeagent.daemon import service
from nodeagent.daemon.turn import plan


def test_the_agent_plans_with_kubelets_order(monkeypatch: pytest.MonkeyPatch) -> None:
    planned_with: list[object] = []

    def serve(_: str) -> int:
        planned_with.append(plan.diff)
        return 0

    monkeypatch.setattr(service, "serve", serve)
    monkeypatch.setattr(sys, "argv", ["kubelet_order", "config.yaml"])
    assert main() == 0
    assert isinstance(planned_with[0], KubeletOrder)
