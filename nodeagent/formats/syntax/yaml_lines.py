"""Plain values formatted as lines of YAML for people."""

from typing import Any

import yaml


def yaml_lines(document: dict[str, Any], *, is_utf8: bool = True) -> list[str]:
    """Format the fields as YAML in their given order. A string is quoted if YAML would read it as another type.
    With `is_utf8` False, everything but ASCII is escaped for streams of another encoding.
    """
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=is_utf8, default_flow_style=False, width=1000)
    return text.splitlines()
