"""Whether events arrive one by one through whatever stands in front of the gateway, from what a probe has seen.

The gateway sends events at known moments and writes each moment into its event; the probe notes when they arrive. The
two clocks differ by an unknown constant, so the event that was quickest counts as not delayed at all: what is left
over for the others is what something on the way added. With a buffer in between, the last event is the quickest.
"""

from __future__ import annotations

from dataclasses import dataclass

from .finding import Finding, Verdict

ALONE = 0.6  # of the events must arrive before the next is sent; a buffer of two events lets half of them
JERK = 1.0  # seconds that one event may be late before people see it

BUFFERED = (
    "turn buffering off on the way: nginx `proxy_buffering off;`, Apache `flushpackets=on`, HAProxy without "
    "`option http-buffer-request`, a content delivery network's streaming mode"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. `sent` by the gateway's clock, `arrived` by the probe's; comments before it, sent and seen."""

    sent: float
    arrived: float
    comments_sent: int
    comments_seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One probe's stream. Seconds; `quiet` is how long nothing had come when it ended, `silence` what was asked for."""

    interval: float
    silence: float
    events: tuple[Event, ...]
    whole: bool
    lasted: float
    quiet: float
    encoding: str = ""  # Content-Encoding
    client_version: str = "1.1"  # HTTP's, of the answer as it arrived
    gateway_version: str = "1.1"  # and of the request as the gateway saw it


def delays(events: tuple[Event, ...]) -> tuple[float, ...]:
    """How much later than the quickest each event arrived."""
    least = min((event.arrived - event.sent for event in events), default=0.0)
    return tuple(event.arrived - event.sent - least for event in events)


def one_by_one(stream: Stream) -> Finding:
    """The main question. Only events `interval` apart count: the last comes after the silence."""
    name, late = "delivery", delays(stream.events)[:-1]
    if len(late) < 2:
        return Finding(name, Verdict.UNKNOWN, f"the stream ended after {len(stream.events)} events")
    alone = sum(delay < stream.interval for delay in late)
    seen = (
        f"{alone} of {len(late)} events arrived before the next was sent, {stream.interval * 1000:.0f} ms apart; "
        f"the latest was {max(late):.2f} s late"
    )
    if alone < ALONE * len(late):
        return Finding(name, Verdict.FAIL, f"held back: {seen}", BUFFERED)
    if max(late) > JERK:
        return Finding(name, Verdict.WARN, f"jerky: {seen}", "look for a busy machine or a bad network on the way")
    return Finding(name, Verdict.OK, seen)


def comments(stream: Stream) -> Finding:
    """Comments fill silences; without them everything on the way believes the stream dead."""
    last = max(stream.events, key=lambda event: event.comments_sent, default=None)
    if last is None or not last.comments_sent:
        return Finding("comments", Verdict.UNKNOWN, "the stream ended before the first comment")
    seen = f"{last.comments_seen} of {last.comments_sent} keep-alive comments arrived"
    if last.comments_seen >= last.comments_sent:
        return Finding("comments", Verdict.OK, seen)
    return Finding(
        "comments", Verdict.FAIL, seen,
        "something on the way rewrites the events: let it pass the bytes on as they are",
    )  # fmt: skip


def held_open(stream: Stream) -> Finding:
    """Whether the stream lived to its end."""
    if stream.whole:
        return Finding(
            "silence", Verdict.OK, f"a stream of {stream.lasted:.0f} s with {stream.silence:g} s of silence lived"
        )
    quiet = f", {stream.quiet:.1f} s after its last byte" if stream.quiet >= 1 else ""
    return Finding(
        "silence", Verdict.FAIL, f"the stream was cut after {stream.lasted:.1f} s{quiet}",
        "raise the idle limit on the way above 11 minutes: nginx `proxy_read_timeout 1h;`, HAProxy `timeout server`, "
        "a load balancer's idle timeout",
    )  # fmt: skip


def uncompressed(stream: Stream) -> Finding:
    """A compressor gathers bytes before it writes any."""
    if stream.encoding in ("", "identity"):
        return Finding("compression", Verdict.OK, "events arrive as they are, though the client offered to take gzip")
    return Finding(
        "compression", Verdict.FAIL, f"the events are compressed on the way ({stream.encoding})",
        "exclude text/event-stream: nginx `gzip off;`, Caddy without `encode`, Apache `SetEnv no-gzip 1`",
    )  # fmt: skip


def http_version(stream: Stream) -> Finding:
    """HTTP/1.0 knows neither chunks nor kept connections."""
    if stream.client_version == "1.0":
        return Finding(
            "http", Verdict.FAIL, "the answer arrives in HTTP/1.0: a stream that breaks looks whole",
            "let what stands in front answer in HTTP/1.1 or 2",
        )  # fmt: skip
    if stream.gateway_version == "1.0":
        return Finding(
            "http", Verdict.FAIL, "the gateway is asked in HTTP/1.0: a connection for each call, no end of a stream",
            'nginx `proxy_http_version 1.1;` and `proxy_set_header Connection "";`',
        )  # fmt: skip
    return Finding("http", Verdict.OK, f"HTTP/{stream.gateway_version} at the gateway, {stream.client_version} here")


def address(client: str, forwarded: str) -> Finding:
    """Whom the gateway takes the client for: `forwarded` is absent, ignored or believed."""
    if forwarded == "ignored":
        return Finding(
            "address", Verdict.WARN, f"the gateway ignores X-Forwarded-For: all clients look like {client}",
            f'[gateway] trusted_proxies = ["{client}"] in config.toml, then llm-appliance apply',
        )  # fmt: skip
    how = "by X-Forwarded-For of a trusted proxy" if forwarded == "believed" else "and no proxy says otherwise"
    return Finding("address", Verdict.OK, f"the gateway sees this client as {client}, {how}")


def tokens(arrived: tuple[float, ...], total: float, whole: bool, model: str) -> Finding:
    """A real model's stream: `arrived` are seconds since the question. It is irregular, so it proves little."""
    name = "model"
    if not whole:
        return Finding(name, Verdict.FAIL, f"the answer of {model} broke off after {len(arrived)} events",
                       "llm-appliance status; llm-appliance logs")  # fmt: skip
    if len(arrived) < 8:
        return Finding(name, Verdict.OK, f"{model} answered in {total:.1f} s")
    span = arrived[-1] - arrived[0]
    seen = f"{model}: first token after {arrived[0]:.2f} s, {len(arrived)} events in {span:.2f} s"
    if span < total / 20:
        return Finding(name, Verdict.WARN, f"{seen}: all at once", BUFFERED)
    return Finding(name, Verdict.OK, seen)
