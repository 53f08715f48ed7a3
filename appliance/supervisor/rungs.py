"""What the engines' ladders change about their next start, in a file for each launcher.

The ledger is what counts; these files follow it, and are written again where they differ. An engine that stands on no
rung has no file, or one that changes nothing: a copy of an older one may lie where the launcher looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from appliance import names
from appliance.host import files
from appliance.host.places import Places
from appliance.policy.ladder import Ladder
from appliance.policy.reconcile import Seen, UnitState
from appliance.policy.restart import Record


def write(places: Places, records: Mapping[str, Record]) -> None:
    """Bring the files in line with the records. Raises OSError: no start may follow with what is not on disk."""
    directory = Path(places.under_state(names.RUNGS))
    for instance, record in records.items():
        path = directory / f"{instance}.json"
        wanted = {"v": 1, **_content(record.ladder)}
        if files.read_json(path) == wanted or not (record.ladder.rungs or path.exists()):
            continue
        directory.mkdir(parents=True, exist_ok=True)
        files.replace_json(path, wanted)


def laid(places: Places, seen: Mapping[str, Seen]) -> frozenset[str]:
    """Of those whose launcher waits, the ones whose unit was given, at its start, the file that is written here now."""
    directory = places.under_state(names.RUNGS)
    return frozenset(
        instance
        for instance, now in seen.items()
        if now.unit is UnitState.OVER
        and files.read_json(f"{directory}/{instance}.json") == files.read_json(names.engine_rung(instance, places.run))
    )


def _content(ladder: Ladder) -> dict[str, object]:
    moved = [rung.at for rung in ladder.rungs if rung.caches]
    return {
        "digest": ladder.place.digest,
        "runtime": ladder.place.runtime,
        "gpus": list(ladder.place.gpus),
        "flags": ladder.flags,
        "env": ladder.env,
        "caches": f"{moved[-1]:.3f}" if moved else "",
        "told": ladder.told,
    }
