"""What one call holds of its key's allowance, from before its admission to its end."""

from __future__ import annotations

from appliance.policy.admission import Ticket
from appliance.policy.allowance import Hold
from appliance.wire.openai import Call, Route, limit_set
from appliance.wire.usage import Usage

from .allowances import Allowances, demand, prompt_tokens
from .auth import Principal
from .exchange import Exchange
from .finish import End, Finish

# Tokens, a large context of today: a client may write any number into max_tokens, and what one call claims to need must
# not outweigh all that the other keys and classes have waited for.
HEAVIEST = 1 << 17


class Claim:
    """A reservation that is settled exactly once, where its call ends. Making one without `hold` may raise
    ApiError."""

    __slots__ = ("_allowances", "_call", "_hold", "_principal", "_route")

    def __init__(
        self, allowances: Allowances, principal: Principal, call: Call, route: Route, hold: Hold | None = None
    ) -> None:
        self._allowances, self._principal, self._call, self._route = allowances, principal, call, route
        self._hold = hold or allowances.reserve(principal, demand(call, route, principal.limits))

    def ticket(self, number: int, arrived: float) -> Ticket:
        """How the call stands in a queue."""
        weight = min(self._hold.tokens, HEAVIEST)
        return Ticket(number, self._principal.key_id, arrived, weight, self._principal.limits.priority)

    def bound(self, context: object) -> bytes:
        """The field that bounds the answer where only the key does; `context` is what the engine can hold at most."""
        limit, route = self._principal.limits.max_tokens, self._route
        if limit is None or self._call.max_tokens is not None or not route.limits:
            return b""
        # An engine refuses a limit above its context, and one that has a limit of its own keeps it.
        bounds = (limit // self._call.answers, route.unbounded, context if isinstance(context, int) else None)
        return limit_set(route, min(bound for bound in bounds if bound is not None))

    def settle(self, exchange: Exchange | None, finish: Finish, usage: Usage | None) -> None:
        """Give back what was held and count what was used; the order of the queue learns it too."""
        used = self._used(exchange, finish, usage)
        self._allowances.give_back(self._hold, self._principal, used)
        if exchange is not None and exchange.admitted_at is not None:
            exchange.group.admission.correct(exchange.ticket, used or 0)

    def _used(self, exchange: Exchange | None, finish: Finish, usage: Usage | None) -> int | None:
        """Tokens that an engine worked on; None: the call got nothing for which its key should pay.

        Where the engine did not say, the events that were passed on and the guessed prompt: a client that leaves in the
        middle has used both, and so has one whose key's time was over.
        """
        relay = exchange.relay if exchange is not None else None
        if relay is None:
            return None
        nothing = finish.end is End.REFUSED or (finish.end is End.BROKEN and not relay.events)
        if nothing and not finish.is_out_of_time:
            return None
        if self._route.free or (relay.head is not None and relay.head.status >= 400):
            return 0
        prompt = usage.prompt_tokens if usage is not None else None
        if prompt is None:
            prompt = prompt_tokens(self._call, self._route)
        return prompt + (usage.completion_tokens if usage is not None else 0)
