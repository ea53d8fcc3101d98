"""Texts that are neither YAML nor JSON."""

import pytest

from nodeagent.formats.syntax.documents import read_documents
from nodeagent.formats.syntax.findings import Findings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"kind: Pod\nmetadata:\n  name: {{ .Values.name }}\n", 3),
        (b"{{- if .Values.on }}\nkind: Pod\n{{- end }}\n", 1),
        (b"kind: Pod\n---\nmetadata: {{ toYaml .Values }}\n", 3),
    ],
)
def test_a_template_that_was_not_rendered_is_named(text: bytes, line: int) -> None:
    findings = Findings("pod.yaml")
    assert read_documents(text, findings) is None
    assert (
        str(findings.all()[-1])
        == f"pod.yaml:{line}: a template starts here: render the file first, for example with `helm template`"
    )


def test_a_template_in_a_string_is_text() -> None:
    findings = Findings("pod.yaml")
    assert read_documents(b'command: ["docker", "inspect", "-f", "{{ .Id }}"]\n', findings) is not None
    assert findings.all() == ()
