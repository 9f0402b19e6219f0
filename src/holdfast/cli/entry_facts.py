"""Reads the facts of a journal entry, from any release of the orchestrator."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.model import Facts
    from holdfast.wire.http import EventView


def facts_of(event: "EventView") -> "Facts | None":
    """None if nothing but the text is known. Release 0.1 sends the text only, which is parsed here."""
    import msgspec

    from holdfast.model import Facts, old_sentences

    if event.facts is None:
        return old_sentences.entry_facts(event.kind, event.text, event.node)
    try:
        return msgspec.convert(event.facts, Facts)
    except msgspec.ValidationError:  # from a later release, with a code that is unknown here
        return None
