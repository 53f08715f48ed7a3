"""Changes that are no fault, each with its MESSAGE_ID, and the journal's message catalogue made of them and the causes.

`systemd/llm-appliance.catalog` is `catalog()`; a test compares the two. `@LLM_ENGINE@` is filled in by journalctl from
the entry's field.
"""

from __future__ import annotations

from dataclasses import dataclass

from .causes import CAUSES


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of change: its MESSAGE_ID, its subject, what follows from it."""

    message: str
    subject: str
    text: str


# fmt: off
EVENTS: dict[str, Event] = {
    "engine-starting": Event("cc14012d46235f6292f647fcf5416e3c",
        "Engine @LLM_ENGINE@ is being started",
        "The engine loads its model. `llm-appliance status` shows how far it is."),
    "engine-serving": Event("11aebce8a2245d3eaca28f4895f0d6a1",
        "Engine @LLM_ENGINE@ serves",
        "The engine answered a real request and takes calls."),
    "engine-restarting": Event("2a4f2520c0a35503884fb63fd7d710ad",
        "Engine @LLM_ENGINE@ is being restarted",
        "The message says why. Calls that had not begun are sent again; open streams end with an error event."),
    "engine-waiting": Event("8d78f7f629ea588ebda3cdabfece48be",
        "Engine @LLM_ENGINE@ waits",
        "The engine starts by itself when what the message names is there: the vLLM runtime, its model, or its turn."),
    "engine-held": Event("1a7bdc0f29875b9eba9132f59fec2740",
        "Engine @LLM_ENGINE@ is held",
        "The engine is not started again, not even by a reboot, until somebody says so. When the cause is gone:\n"
        "    llm-appliance resume @LLM_ENGINE@"),
    "engine-resumed": Event("9285a88fd53d5d64a2f2cb5a80abfe94",
        "Engine @LLM_ENGINE@ was resumed", "Its count of restarts begins anew."),
    "engine-stopped": Event("bb5758c29c6654509fb2f02238dd842a",
        "Engine @LLM_ENGINE@ is stopped",
        "The configuration names it no more, or somebody stopped its unit by hand. To start it again:\n"
        "    llm-appliance restart @LLM_ENGINE@"),
    "engine-failed": Event("f3cc5d4bd8c35c4ea36776ea931334e0",
        "Engine @LLM_ENGINE@ failed and is left as it is",
        "The supervisor only observes (mode under [supervisor]), or cannot act; the message says which."),
    "config-applied": Event("c630cd4c408c5f0b9228358c9dbcebf3",
        "The configuration was applied",
        "Changed engines are restarted one after the other; `llm-appliance status` shows them."),
    "config-invalid": Event("9fa4ea4c6a6d523490ca6a664c808135",
        "The configuration file is invalid",
        "Nothing that runs is touched. `llm-appliance check` names every problem with its file and line."),
    "systemd-refused": Event("647496dae02e52b39cc87e28bc128a6f",
        "systemd did not carry out a request",
        "The message holds the answer. The supervisor tries again; if it persists, look at\n"
        "    systemctl status llm-unitctl.socket"),
    "runtime-started": Event("1ca58501590c5a7f8f5d89048741de49",
        "The vLLM runtime is being completed",
        "An engine waits for the runtime or for a model. To see the progress:\n    systemctl status llm-runtime"),
    "supervisor-started": Event("c4feb8b580b95dfeb20e33d8077d5865",
        "The supervisor runs", "It keeps the engines of the configuration serving."),
    "supervisor-fault": Event("7dea62ffae4f583eb35c826b7b3fc8bb",
        "A cycle of the supervisor failed",
        "Nothing was changed in that cycle; the next one tries again. If it repeats, report it with the message."),
}
# fmt: on


def message_id(word: str) -> str:
    """The MESSAGE_ID of a cause or an event. Raises KeyError for a word that is neither."""
    return EVENTS[word].message if word in EVENTS else CAUSES[word].message


def catalog() -> str:
    """The message catalogue for all rows, in systemd's format."""
    entries = [(event.message, event.subject, event.text) for event in EVENTS.values()]
    entries += [
        (cause.message, f"Engine @LLM_ENGINE@: {word}", f"{cause.meaning}\n{cause.advice}")
        for word, cause in CAUSES.items()
    ]
    return "\n".join(
        f"-- {message}\nSubject: {subject}\nDefined-By: llm-appliance\n\n{text}\n" for message, subject, text in entries
    )
