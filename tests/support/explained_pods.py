"""What `nodeagent explain` says of one pod, as a document that fits its schema."""

from typing import Any

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedies import Remedies, remedies
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.document import ExplainedPod, describe_explanation
from tests.support import json_schema


def explained_pod(before: WhatIf, of: Pod, config: Config) -> dict[str, Any]:
    """Decide on a pod, and try what would admit it if it is refused."""
    known = trace(before, of)
    others = Remedies() if isinstance(known.decision, Admitted) else remedies(before, of)
    document = describe_explanation([ExplainedPod(before, known, others)], config=config, what_if=before, where="here")
    json_schema.check(document, "explanation")
    return document
