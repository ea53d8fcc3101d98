"""Pods, their containers and what these ask for, a line each: as the manifest border gives them, with defaults applied."""

from typing import Any

from nodeagent.core.model.pod import Container, ContainerKind, Pod, ResourceRequirements, Resources, RestartPolicy
from nodeagent.core.model.pod_resources import with_container_defaults
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import Origin
from nodeagent.core.turn.pod_sources import Manifest


def amounts(cpu: str | None = None, memory: str | None = "64Mi", **pages: str) -> Resources:
    """`hugepages_2Mi="1Gi"` names huge pages."""
    named = {"cpu": cpu, "memory": memory} | {name.replace("_", "-"): text for name, text in pages.items()}
    return Resources.of({name: Quantity.parse(text) for name, text in named.items() if text is not None})


def exclusive(cpu: str | None = None, memory: str | None = "64Mi", **pages: str) -> ResourceRequirements:
    """Requests equal limits: CPUs of its own, if they are whole."""
    return ResourceRequirements(amounts(cpu, memory, **pages), amounts(cpu, memory, **pages))


def burstable(cpu: str = "100m", limit: str | None = None) -> ResourceRequirements:
    return ResourceRequirements(amounts(cpu), amounts(limit) if limit else Resources())


def app(name: str = "app", cpu: str | None = None, memory: str = "64Mi", **more: Any) -> Container:
    """A container with a process; with `cpu`, requests equal limits. `devices`: so many of each resource."""
    pages = {key: more.pop(key) for key in tuple(more) if key.startswith("hugepages_")}
    devices = {resource: Quantity.of(count) for resource, count in more.pop("devices", {}).items()}
    resources = exclusive(cpu, memory, **pages) if cpu is not None else ResourceRequirements()
    if devices:
        resources = ResourceRequirements(
            Resources.of(dict(resources.requests) | devices), Resources.of(dict(resources.limits) | devices)
        )
    fields: dict[str, Any] = {"resources": resources, "command": ("run",)}
    return Container(name, **(fields | more))


def mixed(name: str = "app", cpu: str = "2500m", *, own: int = 2, **more: Any) -> Container:
    """So many of its CPUs are exclusive, and the rest of its request is of the shared pool."""
    return app(name, cpu, exclusive_cpus=own, **more)


def init(name: str = "init", cpu: str | None = None, memory: str = "64Mi", **more: Any) -> Container:
    return app(name, cpu, memory, kind=ContainerKind.INIT, **more)


def sidecar(name: str = "side", cpu: str | None = None, memory: str = "64Mi", **more: Any) -> Container:
    return app(name, cpu, memory, kind=ContainerKind.SIDECAR, restart_policy=RestartPolicy.ALWAYS, **more)


def shared(name: str, kind: ContainerKind = ContainerKind.APP) -> Container:
    """A container without amounts of its own."""
    return app(name, kind=kind)


def cgroup_only(name: str = "slot", cpu: str | None = None, **more: Any) -> Container:
    return app(name, cpu, command=(), **more)


def unit(name: str = "db.service", cpu: str | None = None, **more: Any) -> Container:
    """A container that stands for a unit of systemd's, and is called as that without its kind."""
    return app(name.rpartition(".")[0], cpu, unit=name, command=(), **more)


def pod(name: str, *containers: Container, uid: str | None = None, **more: Any) -> Pod:
    made = Pod(uid=uid or f"uid-{name}", namespace="default", name=name, containers=containers or (app(),), **more)
    return with_container_defaults(made)


def job(name: str, *containers: Container, policy: RestartPolicy = RestartPolicy.NEVER, **more: Any) -> Pod:
    return pod(name, *containers, restart_policy=policy, **more)


def manifests(*pods: Pod) -> tuple[Manifest, ...]:
    """One file each, named after the pod."""
    return tuple(Manifest(p, Origin(f"{p.name}.yaml")) for p in pods)
