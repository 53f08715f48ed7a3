"""Changes that are no fault, and the journal's message catalogue made of them and the causes.

`systemd/llm-appliance.catalog` is `catalog(host.journal.message_id)`; a test compares the two. `@LLM_ENGINE@` is filled
in by journalctl from the entry's field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .causes import CAUSES


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of change: its subject, what follows from it."""

    subject: str
    text: str


# fmt: off
EVENTS: dict[str, Event] = {
    "engine-starting": Event("Engine @LLM_ENGINE@ is being started",
        "The engine loads its model. `llm-appliance status` shows how far it is."),
    "engine-serving": Event("Engine @LLM_ENGINE@ serves",
        "The engine answered a real request and takes calls."),
    "engine-restarting": Event("Engine @LLM_ENGINE@ is being restarted",
        "The message says why. Calls that had not begun are sent again; open streams end with an error event."),
    "engine-draining": Event("Engine @LLM_ENGINE@ drains",
        "It gets no new calls and finishes those that are open: before a restart while another replica serves, up to\n"
        "`drain` under [gateway.timeouts]; or because an operator said so, until `llm-appliance undrain`."),
    "engine-changed": Event("What is changed about the starts of engine @LLM_ENGINE@",
        "As it is configured the engine could not start, or would fail again. The supervisor changed what the message\n"
        "names, and tries to do without that at a later start. To keep it, write it into the configuration; to have\n"
        "none made: `oom_ladder = false` under [supervisor.restart]."),
    "engine-waiting": Event("Engine @LLM_ENGINE@ waits",
        "The engine starts by itself when what the message names is there: the vLLM runtime, its model, or its turn."),
    "engine-held": Event("Engine @LLM_ENGINE@ is held",
        "The engine is not started again, not even by a reboot, until somebody says so. When the cause is gone:\n"
        "    llm-appliance resume @LLM_ENGINE@"),
    "engine-resumed": Event("Engine @LLM_ENGINE@ was resumed", "Its count of restarts begins anew."),
    "engine-stopped": Event("Engine @LLM_ENGINE@ is stopped",
        "The configuration names it no more, or somebody stopped its unit by hand. To start it again:\n"
        "    llm-appliance restart @LLM_ENGINE@"),
    "engine-ended": Event("Engine @LLM_ENGINE@ has ended",
        "The message says how. The supervisor decides what follows; `llm-appliance status` shows it."),
    "engine-ending": Event("Engine @LLM_ENGINE@ is being ended by its launcher",
        "The message says why. Its lines before this one say more."),
    "engine-note": Event("A remark on engine @LLM_ENGINE@", "Nothing follows from it by itself."),
    "engine-aborted": Event("Engine @LLM_ENGINE@ is ended so that it tells where it was",
        "Its processes print their stacks and end; what they printed stands in the incident. It is restarted then."),
    "engine-killed": Event("All processes of engine @LLM_ENGINE@ are killed",
        "The evidence is on disk: `llm-appliance incidents`. The engine is started again when they are gone and the\n"
        "GPU's memory is free."),
    "engine-reclaimed": Event("What engine @LLM_ENGINE@ held is free again", "The engine is started again."),
    "engine-unkillable": Event("Processes of engine @LLM_ENGINE@ cannot be killed",
        "They hang in the kernel, most often in the GPU's driver. Only a reboot of the machine helps."),
    "request-quarantined": Event("A request was in flight at two crashes of engine @LLM_ENGINE@",
        "The gateway refuses it with 422 for an hour: LLM_REQUEST_ID and LLM_KEY_ID tell who sent it, and the usage\n"
        "ledger when. Where several were in flight both times they run one at a time until it is known which it is.\n"
        "To lift it: systemctl restart llm-gateway"),
    "engine-suspect": Event("Engine @LLM_ENGINE@ has work and makes no progress",
        "The message says for how long, and what was noticed. When it is certain, by the limits under\n"
        "[supervisor.hang], the engine is taken down with evidence; in mode \"observe\" nothing is done."),
    "incident-kept": Event("Evidence about engine @LLM_ENGINE@ is on disk",
        "To read it, and to send it with a report:\n"
        "    llm-appliance incidents @LLM_INCIDENT@\n    llm-appliance report @LLM_INCIDENT@"),
    "incident-lost": Event("Evidence about engine @LLM_ENGINE@ could not be kept",
        "The message says why. What is done with the engine does not depend on it."),
    "engine-failed": Event("Engine @LLM_ENGINE@ failed and is left as it is",
        "The supervisor only observes (mode under [supervisor]), or cannot act; the message says which."),
    "config-applied": Event("The configuration was applied",
        "Changed engines are restarted one after the other; `llm-appliance status` shows them."),
    "config-invalid": Event("The configuration file is invalid",
        "Nothing that runs is touched. `llm-appliance check` names every problem with its file and line."),
    "systemd-refused": Event("systemd did not carry out a request",
        "The message holds the answer. The supervisor tries again; if it persists, look at\n"
        "    systemctl status llm-unitctl.socket"),
    "telemetry-fault": Event("A source of evidence gives nothing",
        "Engines are watched by what the other sources tell; none is touched for the want of one."),
    "runtime-started": Event("The vLLM runtime is being completed",
        "An engine waits for the runtime or for a model. To see the progress:\n    systemctl status llm-runtime"),
    "supervisor-started": Event("The supervisor runs", "It keeps the engines of the configuration serving."),
    "supervisor-fault": Event("A cycle of the supervisor failed",
        "Nothing was changed in that cycle; the next one tries again. If it repeats, report it with the message."),
}
# fmt: on


def catalog(message_id: Callable[[str], str]) -> str:
    """The message catalogue for all rows, in systemd's format; `message_id` derives the id of a word."""
    entries = [(word, event.subject, event.text) for word, event in EVENTS.items()]
    entries += [(word, f"Engine @LLM_ENGINE@: {word}", f"{c.meaning}\n{c.advice}") for word, c in CAUSES.items()]
    return "\n".join(
        f"-- {message_id(word)}\nSubject: {subject}\nDefined-By: llm-appliance\n\n{text}\n"
        for word, subject, text in entries
    )
