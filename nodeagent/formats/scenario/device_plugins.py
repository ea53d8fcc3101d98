"""Device plugins in a scenario: the devices that each plugin lists, and the rules that compute its answers (docs/simulate.md)."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.device_pools import PoolDevice
from nodeagent.core.model.idset import MAX_ID, NumaMask
from nodeagent.formats.syntax.fields import Fields

PREFERENCES = ("lowest", "highest", "order", "short", "all", "ids", "empty", "none", "error")
ALLOCATIONS = ("env", "error", "errorIf")
NO_NODE = -1
"""NUMA node ID of a device that isn't near any node, as in the kernel."""


class PluginRule(Struct, frozen=True):
    """Rule for a plugin's answers to one kind of call. Each rule uses only some of the fields."""

    rule: str
    ids: tuple[str, ...] = ()
    """Device IDs for the rules `order`, `ids` and `errorIf`."""
    by: int = 0
    """Number of devices by which the answer of rule `short` is too short."""
    name: str = ""
    """Name of the environment variable that rule `env` sets."""
    message: str = ""
    """Text of the error that the plugin returns."""


class PluginRules(Struct, frozen=True):
    is_registered: bool = True
    """Whether the plugin has registered and listed its devices at the start."""
    preferred: PluginRule | None = None
    """Answer to GetPreferredAllocation. None means that the plugin doesn't offer this call."""
    allocate: PluginRule | None = None
    """Answer to Allocate. None means an empty answer."""


class ScenarioPlugin(Struct, frozen=True):
    devices: tuple[PoolDevice, ...]
    """Devices that the plugin lists, sorted by ID."""
    rules: PluginRules = PluginRules()


def read_plugins(fields: Fields) -> tuple[tuple[str, ScenarioPlugin], ...] | None:
    """Read the plugins of a scenario by resource, sorted. None means that the scenario doesn't mention devices."""
    inner = fields.object("devices", keyed=True)
    if inner is None:
        return None
    found = []
    for resource in sorted(inner.present()):
        each = inner.object(resource)
        if each is not None:
            rules = read_rules(each)
            found.append((resource, ScenarioPlugin(read_devices(each), PluginRules() if rules is None else rules)))
            each.close()
    return tuple(found)


def read_devices(fields: Fields) -> tuple[PoolDevice, ...]:
    """Read a plugin's list of devices, sorted by ID."""
    found = {}
    for each in fields.objects("devices"):
        id_ = each.string("id") or ""
        if not id_:
            each.report("id", "is required: the device's ID")
        is_healthy = each.boolean("healthy")
        nodes = each.integers("numa", NO_NODE, MAX_ID)
        found[id_] = PoolDevice(
            id_,
            None if nodes is None else NumaMask(sum(1 << node for node in {*nodes} - {NO_NODE})),
            is_healthy=is_healthy is not False,
            lists_minus_one=NO_NODE in (nodes or ()),
        )
        each.close()
    return tuple(device for _, device in sorted(found.items()))


def read_rules(fields: Fields) -> PluginRules | None:
    """Read the rules of a plugin. None means that the plugin has no rules."""
    inner = fields.object("plugin")
    if inner is None:
        return None
    rules = PluginRules(
        inner.boolean("registered") is not False,
        _read_rule(inner, "preferred", PREFERENCES),
        _read_rule(inner, "allocate", ALLOCATIONS),
    )
    inner.close()
    return rules


def _read_rule(fields: Fields, key: str, rules: tuple[str, ...]) -> PluginRule | None:
    inner = fields.object(key)
    if inner is None:
        return None
    name = inner.one_of("rule", rules)
    if not inner.has("rule"):
        inner.report("rule", f"is required: one of {', '.join(rules)}")
    rule = PluginRule(
        name or "",
        inner.strings("order" if name == "order" else "ids"),
        inner.integer("by", 0, 2**31) or 0,
        inner.string("name") or "",
        inner.string("message") or "",
    )
    inner.close()
    return rule


def prefer_devices(
    rule: PluginRule, available: tuple[str, ...], must: tuple[str, ...], size: int
) -> tuple[str, ...] | str:
    """Answer a GetPreferredAllocation call by a rule. Return the preferred IDs, or the text of an error."""
    rest = sorted({*available} - {*must})
    count = max(0, size - len({*must}))
    match rule.rule:
        case "lowest":
            return (*must, *rest[:count])
        case "highest":
            return (*must, *rest[max(0, len(rest) - count) :])
        case "order":
            return (*must, *[id_ for id_ in rule.ids if id_ in rest][:count])
        case "short":
            return (*must, *rest[: max(0, count - rule.by)])
        case "all":
            return tuple(available)
        case "ids":
            return rule.ids
        case "error":
            return rule.message
        case _:
            return ()


def allocate_devices(rule: PluginRule | None, ids: tuple[str, ...]) -> Mapping[str, str] | str:
    """Answer an Allocate call by a rule. Return the environment variables in the answer, or the text of an error."""
    if rule is None:
        return {}
    if rule.rule == "env":
        return {rule.name: ",".join(sorted(ids))}
    return rule.message if rule.rule == "error" or not {*rule.ids}.isdisjoint(ids) else {}
