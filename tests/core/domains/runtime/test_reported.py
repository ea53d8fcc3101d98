"""What the runtime has reported is one value per turn: an earlier turn's stays as it was."""

from nodeagent.core.domains.runtime.instructions import Looked, Populated
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.model.nri import Call, Event, Synchronized
from nodeagent.core.model.runtime_containers import KnownSandbox, Registry
from tests.support.pods import app, pod
from tests.support.runtime_pods import sandbox_of, told

WEB, OTHER = pod("web", app("main", "2")), pod("other", app("main", "1"))
CREATED = Call(Event.CREATE_CONTAINER, sandbox_of(WEB), told(WEB, WEB.container("main"), id="m"))
LISTED = Synchronized((sandbox_of(OTHER),), (told(OTHER, OTHER.container("main"), id="o"),))


def test_an_event_leaves_the_value_before_it_as_it_was() -> None:
    before = RuntimeReport().after(CREATED)
    after = before.after(Looked(LISTED))
    assert set(before.containers) == {"m"}
    assert set(after.containers) == {"m", "o"}, "a look leaves out what is under way"
    assert set(after.after(LISTED).containers) == {"o"}, "a list has all that there is"
    assert after.after(Populated(frozenset())) is after


def test_what_the_registry_has_forgotten_is_forgotten() -> None:
    reported = RuntimeReport().after(CREATED)
    sandbox = sandbox_of(WEB)
    left = reported.known_to(Registry(sandboxes=(KnownSandbox(sandbox.id, sandbox.uid),)))
    assert set(left.sandboxes) == {sandbox.id}
    assert not left.containers
    assert set(reported.containers) == {"m"}
