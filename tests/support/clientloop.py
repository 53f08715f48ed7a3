"""A client that asks again and again until a file appears, and tells how many answers it did not get.

    python clientloop.py URL KEY MODEL STOPFILE [LIMIT]

Standard library only; a new connection for each request. Prints one JSON object: `asked`, `good`, `bad` (what came
instead of an answer, at most ten), `longest` (seconds).
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request


def main() -> None:
    """Ask until told to stop, or LIMIT seconds (default 120) have gone."""
    url, key, model, stop = sys.argv[1:5]
    deadline = time.monotonic() + float(sys.argv[5] if len(sys.argv) > 5 else 120)
    messages = [{"role": "user", "content": "Say hi."}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 4}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    asked, good, longest, bad = 0, 0, 0.0, list[str]()
    while not os.path.exists(stop) and time.monotonic() < deadline:
        asked += 1
        began = time.monotonic()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
                json.loads(answer.read())["choices"][0]
                good += 1
        except urllib.error.HTTPError as problem:
            bad.append(f"{problem.code}: {problem.read(300).decode(errors='replace')}")
        except (OSError, ValueError, LookupError) as problem:
            bad.append(f"{type(problem).__name__}: {problem}")
        longest = max(longest, time.monotonic() - began)
    print(json.dumps({"asked": asked, "good": good, "bad": bad[:10], "longest": round(longest, 2)}))


if __name__ == "__main__":
    main()
