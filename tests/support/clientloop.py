"""Clients that ask again and again until a file appears, and tell how many answers they did not get.

    python clientloop.py URL KEY MODEL STOPFILE [--limit S] [--fresh N] [--kept N]

Standard library only. Of the clients N open a connection for each request, N keep theirs until the server says that it
ends; nobody asks twice. Prints one JSON object: `asked`, `good`, `bad` (what came instead of an answer, at most ten),
`failed` (how many), `longest` (seconds). STOPFILE.count has `asked`, now and then, while it runs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import threading
import time
from urllib.parse import urlsplit


class Loop:
    """All clients and what they saw."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.url, self.stop = urlsplit(options.url), options.stop
        messages = [{"role": "user", "content": "Say hi."}]
        self.body = json.dumps({"model": options.model, "messages": messages, "max_tokens": 4}).encode()
        self.headers = {"Authorization": f"Bearer {options.key}", "Content-Type": "application/json"}
        self.deadline = time.monotonic() + options.limit
        self.asked = self.good = 0
        self.longest = 0.0
        self.bad: list[str] = []
        self._lock = threading.Lock()

    def run(self, kept: bool) -> None:
        """One client."""
        connection: http.client.HTTPConnection | None = None
        while not os.path.exists(self.stop) and time.monotonic() < self.deadline:
            began, problem = time.monotonic(), ""
            if connection is None:
                connection = http.client.HTTPConnection(self.url.hostname or "", self.url.port, timeout=60)
                connection.auto_open = 0
            try:
                if connection.sock is None:
                    connection.connect()
                connection.request("POST", self.url.path, self.body, self.headers)
                with connection.getresponse() as answer:
                    said = answer.read()
                    if answer.status == 200:
                        json.loads(said)["choices"][0]
                    else:
                        problem = f"{answer.status}: {said[:300].decode(errors='replace')}"
                    ends = not kept or answer.headers.get("Connection", "").lower() == "close"
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                problem, ends = f"{type(error).__name__}: {error}", True
            if ends:
                connection.close()
                connection = None
            with self._lock:
                self.asked += 1
                self.good += not problem
                self.bad += [problem] if problem else []
                self.longest = max(self.longest, time.monotonic() - began)
                if self.asked % 20 == 0:  # replaced, since whoever reads half of it would count from nought
                    with open(f"{self.stop}.count.new", "w") as file:
                        file.write(str(self.asked))
                    os.replace(f"{self.stop}.count.new", f"{self.stop}.count")


def main() -> None:
    """Ask until told to stop, or `limit` seconds have gone."""
    parser = argparse.ArgumentParser()
    for name in ("url", "key", "model", "stop"):
        parser.add_argument(name)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--fresh", type=int, default=1)
    parser.add_argument("--kept", type=int, default=0)
    options = parser.parse_args()
    loop = Loop(options)
    kinds = [False] * options.fresh + [True] * options.kept
    threads = [threading.Thread(target=loop.run, args=(kept,)) for kept in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = {"asked": loop.asked, "good": loop.good, "bad": loop.bad[:10], "failed": len(loop.bad)}
    print(json.dumps(told | {"longest": round(loop.longest, 2)}))


if __name__ == "__main__":
    main()
