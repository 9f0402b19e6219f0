"""What an entry of the journal says as data, whichever release answered."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.model import Facts
    from holdfast.wire.http import EventView


def facts_of(event: "EventView") -> "Facts | None":
    """None: nothing but its text is known. An orchestrator of 0.1 sends the text only."""
    import msgspec

    from holdfast.model import Facts, old_sentences

    if event.facts is None:
        return old_sentences.entry_facts(event.kind, event.text, event.node)
    try:
        return msgspec.convert(event.facts, Facts)
    except msgspec.ValidationError:  # of a later release, with a code that this one does not have
        return None
