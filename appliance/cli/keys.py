"""`llm-appliance keys create|list|revoke|rotate`: API keys in the file that `auth.keys_file` names.

A new key is printed alone on standard output, once; what is stored is its hash. The gateway takes a change within a
second. Works without root on a file of one's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timezone

from appliance import clock, names
from appliance.config import source
from appliance.config.fleet import served_names
from appliance.config.model import PRIORITIES, KeyLimits
from appliance.errors import EXIT_OK, ConfigInvalid, UsageError
from appliance.host import auditfiles, keystore
from appliance.quantity import format_duration, format_size, parse_duration, parse_size

from . import audit, output, values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's own verbs."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a key and print it")
    create.add_argument("name", metavar="NAME", help="who or what will use it")
    create.add_argument("--models", metavar="A,B", default="", help="served names that it may use (default: all)")
    create.add_argument("--expires", metavar="WHEN", help="a time from now like 90d, or a date like 2027-01-31")
    create.add_argument("--class", dest="priority", choices=PRIORITIES, default="standard",
                        help="who goes first while calls wait (default: standard)")  # fmt: skip
    create.add_argument("--rpm", metavar="N", type=values.count, help="requests a minute")
    create.add_argument("--tpm", metavar="N", type=values.count, help="tokens a minute, prompts and answers")
    create.add_argument("--parallel", metavar="N", type=values.count, help="requests at once")
    create.add_argument("--daily-tokens", metavar="N", type=values.count, help="tokens a calendar day, UTC")
    create.add_argument("--monthly-tokens", metavar="N", type=values.count, help="tokens a calendar month, UTC")
    create.add_argument("--max-tokens", metavar="N", type=values.count,
                        help="tokens of a request's answers; also what one gets that names no limit")  # fmt: skip
    create.add_argument("--max-prompt", metavar="SIZE", type=_size, help="size of one request, like 256KiB")
    create.add_argument("--stream-time", metavar="TIME", type=_seconds, help="the longest answer, like 10m")
    actions.add_parser("list", help="list the keys")
    revoke = actions.add_parser("revoke", help="make a key useless")
    revoke.add_argument("key", metavar="NAME|ID")
    rotate = actions.add_parser("rotate", help="give a key a new secret and print it")
    rotate.add_argument("key", metavar="NAME|ID")
    rotate.add_argument("--overlap", metavar="TIME", default="0s", help="how long the old secret stays good")


def run(args: argparse.Namespace) -> int:
    """Do what was asked."""
    path = keys_file(args.config)
    now = clock.wall()
    if args.action == "list":
        return _list(path, args.config, now, args.json)
    if args.action == "create":
        models = tuple(word.strip() for word in args.models.split(",") if word.strip())
        limits = KeyLimits(priority=args.priority, **{name: getattr(args, name) for name in keystore.LIMITS})
        key, secret = keystore.create(
            path, args.name, now, models=models, expires=_moment(args.expires, now), limits=limits
        )
        _warn_of_unserved(args.config, models)
        return _show(key, secret, args.json)
    if args.action == "rotate":
        key, secret = keystore.rotate(path, args.key, now, overlap=_duration(args.overlap))
        return _show(key, secret, args.json)
    key = keystore.revoke(path, args.key, now)
    if args.json:
        output.print_json(_public(key, now))
    else:
        output.note(f"{key.name} ({key.id}) is revoked; the gateway refuses it within a second")
    return EXIT_OK


def keys_file(config_path: str) -> str:
    """The keys file by a configuration. Raises ConfigInvalid."""
    return source.path_setting(config_path, "auth", "keys_file", names.KEYS_FILE)


def _show(key: keystore.Key, secret: str, as_json: bool) -> int:
    if as_json:
        output.print_json({"id": key.id, "name": key.name, "key": secret, **_public(key, clock.wall())})
    else:
        print(secret)
        output.note(f"{key.name} ({key.id}): keep it now, it is not shown again")
    return EXIT_OK


def _warn_of_unserved(config_path: str, models: Sequence[str]) -> None:
    """A key for a model that is yet to come is no error, a misspelt one is found here and not by its user."""
    config = source.effective(config_path).config
    served = {name for one in config.engines for name in served_names(one)} if config else set(models)
    for model in models:
        if model not in served:
            output.note(f"warning: no engine serves {model!r}; the configuration has: {', '.join(sorted(served))}")


def _list(path: str, config_path: str, now: float, as_json: bool) -> int:
    keys = keystore.read(path).keys
    uses = _last_uses(config_path, keys)
    if as_json:
        output.print_json(
            [
                {
                    **_public(key, now),
                    "last_use": uses.at.get(key.id) if uses else None,
                    "last_use_known_since": uses.since if uses else None,
                }
                for key in keys
            ]
        )
        return EXIT_OK
    if not keys:
        output.note("no key exists; make one: sudo llm-appliance keys create NAME")
        return EXIT_OK
    output.table(
        [
            (key.id, key.name, _state(key, now), _day(key.expires), _use(key, uses, now),
             ", ".join(key.models) or "all", key.limits.priority, _limits(key.limits))
            for key in keys
        ],
        ("ID", "NAME", "STATE", "EXPIRES", "LAST USE", "MODELS", "CLASS", "LIMITS"),
    )  # fmt: skip
    return EXIT_OK


def _last_uses(config_path: str, keys: Sequence[keystore.Key]) -> auditfiles.LastUses | None:
    """From the ledger's tail; None where it cannot be read."""
    try:
        return auditfiles.last_uses(audit.directory(config_path), [key.id for key in keys])
    except (OSError, ConfigInvalid):
        return None


def _use(key: keystore.Key, uses: auditfiles.LastUses | None, now: float) -> str:
    """How long ago: `?` where nobody can tell, `-` where no request is on record."""
    if uses is None:
        return "?"
    at = uses.at.get(key.id)
    if at is not None:
        return f"{format_duration(max(now - at, 0.0))} ago"
    return "-" if uses.since is None else f"over {format_duration(max(now - uses.since, 0.0))} ago"


def _state(key: keystore.Key, now: float) -> str:
    state, until = key.state(now), key.previous_until
    overlaps = state == "good" and until is not None and now < until
    return f"{state}, its old secret until {output.when(until)[:-3]}" if overlaps else state


def _day(epoch: float | None) -> str:
    return output.when(epoch)[:10]


def _public(key: keystore.Key, now: float) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "state": key.state(now),
        "created": key.created,
        "expires": key.expires,
        "revoked": key.revoked,
        "previous_until": key.previous_until,
        "models": list(key.models),
        "class": key.limits.priority,
        **{name: getattr(key.limits, name) for name in keystore.LIMITS},
    }


def _limits(limits: KeyLimits) -> str:
    """`60 rpm, 4 at once`, or `none`."""
    words = {
        "rpm": "{} rpm", "tpm": "{} tpm", "parallel": "{} at once", "daily_tokens": "{} tokens a day",
        "monthly_tokens": "{} a month", "max_tokens": "{} an answer", "max_prompt": "{} a request",
        "stream_time": "{} of streaming",
    }  # fmt: skip
    given = {name: getattr(limits, name) for name in keystore.LIMITS if getattr(limits, name) is not None}
    if "max_prompt" in given:
        given["max_prompt"] = format_size(given["max_prompt"])
    if "stream_time" in given:
        given["stream_time"] = format_duration(given["stream_time"])
    return ", ".join(words[name].format(value) for name, value in given.items()) or "none"


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError("a request needs at least a byte")
    return size


def _seconds(text: str) -> int:
    """Whole seconds, 1 or more."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 1 or seconds != int(seconds):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of seconds, 1 or more")
    return int(seconds)


def _moment(text: str | None, now: float) -> float | None:
    """Seconds since the epoch of a duration from now or a date."""
    if text is None:
        return None
    try:
        return float(int(now + parse_duration(text)))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="write 90d, or a date like 2027-01-31") from None
    epoch = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    if epoch <= now:
        raise UsageError(f"{text} has passed already")
    return epoch


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
