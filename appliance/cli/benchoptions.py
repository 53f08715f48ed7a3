"""What `bench` was asked for, checked: a wrong argument is refused before anything is sent."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from appliance.errors import UsageError
from appliance.policy.loadfigures import Target
from appliance.quantity import parse_duration

from .benchload import Extent

EACH, SECONDS = 8, 60.0  # requests of each client, and seconds, of a step where nothing else is asked
LEAST = 16  # requests of such a step
TIMEOUT = 600.0
SEEDS = 10**9


@dataclass(frozen=True, slots=True)
class Options:
    """A ladder's options. `concurrency` empty: doubling. `each`: requests of each client, where no number is given."""

    model: str | None
    concurrency: tuple[int, ...]
    requests: int | None
    each: int | None
    seconds: float | None
    input_tokens: int
    output_tokens: int
    shared: int
    target: Target
    seed: int

    @classmethod
    def read(cls, args: argparse.Namespace) -> Options:
        """Raises UsageError."""
        for name in ("requests", "input_tokens", "output_tokens"):
            value = getattr(args, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is at least 1")
        if not 0 <= args.shared_prefix <= args.input_tokens:
            raise UsageError(f"--shared-prefix is between 0 and --input-tokens ({args.input_tokens})")
        is_default = args.requests is None and args.duration is None
        return cls(
            model=args.model,
            concurrency=_numbers(args.concurrency),
            requests=args.requests,
            each=EACH if is_default else None,
            seconds=SECONDS if is_default else _maybe(args.duration, "--duration"),
            input_tokens=args.input_tokens,
            output_tokens=args.output_tokens,
            shared=args.shared_prefix,
            target=Target(_maybe(args.target_ttft, "--target-ttft"), _maybe(args.target_itl, "--target-itl")),
            seed=random.SystemRandom().randrange(SEEDS) if args.seed is None else args.seed,
        )

    def extent(self, concurrency: int) -> Extent:
        """When a step ends."""
        count = self.requests if self.each is None else max(self.each * concurrency, LEAST)
        return Extent(count, self.seconds)


def duration(text: str, option: str) -> float:
    """Seconds. Raises UsageError."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if seconds <= 0:
        raise UsageError(f"{option} is more than nothing")
    return seconds


def _maybe(text: str | None, option: str) -> float | None:
    return None if text is None else duration(text, option)


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise UsageError(f"--concurrency {text!r} is no list of numbers", hint="like --concurrency 1,4,16,64")
    return numbers
