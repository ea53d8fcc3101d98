"""Plain values → lines of YAML, as in documents for people. Knows no field names."""

from typing import Any

import yaml


def yaml_lines(document: dict[str, Any], *, is_utf8: bool = True) -> list[str]:
    """Write the fields in their order; texts that YAML would read as something else are quoted.

    Args:
        document: the fields.
        is_utf8: False: it may be printed on a stream with few characters, so everything but ASCII is escaped.
    """
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=is_utf8, default_flow_style=False, width=1000)
    return text.splitlines()
