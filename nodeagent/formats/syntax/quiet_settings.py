"""Reader and formatter of quiet settings in the configuration's profiles and in pod annotations (`quiet, idleLatency=2us, boost=false`)."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict

from nodeagent.core.model.quiet import ProcessSettings, QuietRequest, QuietSettings
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.fields import Fields, fields_of
from nodeagent.formats.syntax.findings import Findings

PROFILE_NAME = re.compile(r"(?!none$)[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
PROFILE_RULE = "must be a name of at most 32 lower-case letters, digits and dashes, other than none"
SCHEDULER = re.compile(r"batch|(?:fifo|rr):(?:[1-9]|[1-4][0-9])")
"""Pattern of a process's scheduling policy. Its priority is at most 49, below the 50 of threaded interrupts."""
SCHEDULER_RULE = "must be batch, or fifo or rr with a priority from 1 to 49, such as fifo:10"
NICE_RANGE = (-20, 19)
_GOVERNOR = re.compile(r"[a-z][a-z0-9_]{0,14}")
_FREQUENCY = re.compile(r"([0-9]{1,5})(?:\.([0-9]{1,3}))?(MHz|GHz)")
_MAX_LATENCY_US = 1_000_000
_UNCHANGED = ProcessSettings()
_NUMBER = re.compile(r"-?[0-9]{1,3}")
_MAX_TEXT = 1000
_BOOLEANS = {"true": True, "false": False}


def read_settings(fields: Fields) -> QuietSettings:
    """Read the settings from one object. The caller calls `close` on the object."""
    low, high = _read_frequency(fields, "minFrequency"), _read_frequency(fields, "maxFrequency")
    if low is not None and high is not None and low > high:
        fields.report("minFrequency", f"must not be above maxFrequency, {high}MHz", f"{low}MHz")
    return QuietSettings(
        idle_latency_us=_read_latency(fields, "idleLatency"),
        governor=_read_governor(fields, "governor"),
        min_frequency_mhz=low,
        max_frequency_mhz=high,
        idle_siblings=fields.boolean("idleSiblings"),
        boost=fields.boolean("boost"),
    )


def read_process_settings(fields: Fields) -> ProcessSettings:
    """Read the settings for processes from one object. The caller calls `close` on the object."""
    scheduler = fields.string("scheduler")
    if scheduler is not None and not SCHEDULER.fullmatch(scheduler):
        fields.report("scheduler", SCHEDULER_RULE, scheduler)
    return ProcessSettings(
        aslr=fields.boolean("aslr"),
        transparent_huge_pages=fields.boolean("transparentHugePages"),
        scheduler=scheduler,
        nice=fields.integer("nice", *NICE_RANGE),
    )


def format_settings(settings: QuietSettings) -> dict[str, Any]:
    """Format settings as fields of a profile. Settings that are None are left out."""
    found: dict[str, Any] = {}
    for (name, unit), value in zip(_FORMATS.items(), asdict(settings).values(), strict=True):
        if value is not None:
            found[name] = f"{value}{unit}" if unit else value
    return found


_FORMATS: Mapping[str, str] = {
    "idleLatency": "us",
    "governor": "",
    "minFrequency": "MHz",
    "maxFrequency": "MHz",
    "idleSiblings": "",
    "boost": "",
}
"""Unit of each setting, in the order of the attributes of `QuietSettings`."""


def read_request(annotations: Fields, key: str) -> tuple[QuietRequest | None, ProcessSettings]:
    """Read an annotation: a profile's name, settings such as `boost=false`, or both.

    Returns:
        The request for the cores, and the settings of the processes. A request of None means that the cores stay as they are.
    """
    text = annotations.string(key)
    if text is None or text == "none":
        return None, _UNCHANGED
    words = [word.strip() for word in text[:_MAX_TEXT].split(",")]
    profile = words.pop(0) if "=" not in words[0] else ""
    given: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in given:
            annotations.report(key, "must be a profile, and settings such as idleLatency=5us, each once", word)
            continue
        is_number = name == "nice" and _NUMBER.fullmatch(value)
        given[name] = int(value) if is_number else _BOOLEANS.get(value, value)
    if len(text) > _MAX_TEXT or (profile and not PROFILE_NAME.fullmatch(profile)):
        annotations.report(key, f"the profile {PROFILE_RULE}", text)
    findings = Findings("")
    fields = fields_of(given, findings)
    settings, process = read_settings(fields), read_process_settings(fields)
    fields.close()
    for finding in findings.all():
        word = next((one for one in words if one.partition("=")[0] == finding.field), text)
        annotations.report(key, f"{finding.field} {finding.allowed}", word)
    is_of_process = not profile and settings == QuietSettings() and process != _UNCHANGED
    return None if is_of_process else QuietRequest(profile, settings), process


def format_request(request: QuietRequest, process: ProcessSettings = _UNCHANGED) -> str:
    """Format a request, and settings of the processes, as the annotation's text."""
    settings = format_settings(request.settings) | to_builtins(process)
    words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]
    return ", ".join([request.profile] * bool(request.profile) + words) or "none"


def _read_latency(fields: Fields, key: str) -> int | None:
    text = fields.string(key, wanted="a time such as 5us")
    if text is None:
        return None
    try:
        found, rest = divmod(parse_duration_ns(text), 1000)
    except DurationSyntaxError:
        found, rest = 0, 0
    if not rest and 1 <= found <= _MAX_LATENCY_US:
        return found
    fields.report(key, "must be a time in whole microseconds from 1us to 1s, such as 5us", text)
    return None


def _read_governor(fields: Fields, key: str) -> str | None:
    text = fields.string(key)
    if text is None or _GOVERNOR.fullmatch(text):
        return text
    fields.report(key, "must be the name of a governor, such as performance", text)
    return None


def _read_frequency(fields: Fields, key: str) -> int | None:
    text = fields.string(key, wanted="a frequency such as 2400MHz")
    if text is None:
        return None
    if found := _FREQUENCY.fullmatch(text):
        whole, fraction, unit = found.groups(default="")
        mhz = int(whole) * (1000 if unit == "GHz" else 1) + int(fraction.ljust(3, "0"))
        if 1 <= mhz <= 99_999 and (unit == "GHz" or not fraction):
            return mhz
    fields.report(key, "must be a frequency in whole MHz, such as 2400MHz or 2.4GHz", text)
    return None
