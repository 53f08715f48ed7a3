"""The last samples of one subject, bounded by age, number and size."""

from __future__ import annotations

from collections import deque

from appliance.samples import Line, Metrics, Nvml, Sample

from .looks import KEPT_S

MOST = 20_000
MOST_BYTES = 8 << 20  # as estimated by `size_of`


class Ring:
    """Samples in the order in which they came; each has a number that is never given twice."""

    def __init__(self, *, kept_s: float = KEPT_S, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._kept_s, self._most, self._most_bytes = kept_s, most, most_bytes
        self._samples: deque[Sample] = deque()
        self._bytes = 0
        self._next = 0

    def add(self, sample: Sample, now: float) -> None:
        """Take a sample in; the oldest go."""
        self._samples.append(sample)
        self._bytes += size_of(sample)
        self._next += 1
        while (
            len(self._samples) > self._most or self._bytes > self._most_bytes or self._samples[0].t < now - self._kept_s
        ):
            self._bytes -= size_of(self._samples.popleft())
            if not self._samples:
                break

    def after(self, number: int) -> tuple[list[Sample], int]:
        """The samples with that number and later ones, as far as they are still here; and the number to go on with.

        A number that was not given yet is another ring's, of before this one: all are new.
        """
        first = self._next - len(self._samples)
        skipped = number - first if first <= number <= self._next else 0
        return [each for place, each in enumerate(self._samples) if place >= skipped], self._next


def size_of(sample: Sample) -> int:
    """About how many bytes of memory a sample takes."""
    if isinstance(sample, Nvml):
        return 300 + 900 * len(sample.gpus)
    if isinstance(sample, Metrics):
        return 300 + 130 * len(sample.values)
    return 350 + (len(sample.msg) if isinstance(sample, Line) else 0)
