"""The process that asks NVML, with the real pynvml and a library that says what a script says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.quantity import UNKNOWN
from appliance.samples import Gpu, Nvml
from appliance.wire.nvmlline import decode
from tests.support.fakenvml import TWO_GPUS, FakeNvml

FIRST = Gpu(
    pci="0000:3b:00", uuid="GPU-aaaa", idx=0, name="NVIDIA Test 80GB", util=97.0, mem_util=41.0, power_w=312.5,
    power_limit_w=350.0, temp_c=66.0, mem_used_mib=61440.0, mem_total_mib=81920.0, pids=(), recovery_action=0,
    remapped_rows=(0, 0, False, False), ecc_uncorrected=0, throttle=4,
)  # fmt: skip
SECOND = replace(FIRST, pci="0000:d8:00", uuid="GPU-bbbb", idx=1)
NOTHING = Gpu(pci="0000:3b:00", uuid="GPU-aaaa", idx=0, name="NVIDIA GB10")


class Asked:
    """One probe; it is started when it is asked and there is none."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.nvml = nvml
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, script: str) -> Nvml:
        self.nvml.say(script)
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "nvml-probe"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.nvml.environment,
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return decode(self.process.stdout.readline())

    def ended(self) -> int:
        """Its exit status, once nobody asks it any more."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.communicate(timeout=20)
        return process.returncode


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    probe = Asked(FakeNvml(tmp_path_factory.mktemp("nvml")))
    yield probe
    assert probe.ended() == 0


def test_a_box_with_two_gpus(asked: Asked) -> None:
    reading = asked(TWO_GPUS)
    assert reading == Nvml(t=reading.t, gpus=(FIRST, SECOND), driver="580.95.05")


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        pytest.param("gpu1.pids=4711,4712\n", (FIRST, replace(SECOND, pids=(4711, 4712))), id="processes"),
        pytest.param(
            "gpu0.rows=3,1,1,0\ngpu0.ecc=12\ngpu0.throttle=0x48\n",
            (replace(FIRST, remapped_rows=(3, 1, True, False), ecc_uncorrected=12, throttle=0x48), SECOND),
            id="memory-that-wears-out",
        ),
        pytest.param(
            "".join(f"gpu.{name}=!3\n" for name in ("util", "power", "limit", "rows", "ecc", "throttle", "recovery")),
            tuple(
                replace(gpu, util=UNKNOWN, mem_util=UNKNOWN, power_w=UNKNOWN, power_limit_w=UNKNOWN,
                        remapped_rows=UNKNOWN, ecc_uncorrected=UNKNOWN, throttle=UNKNOWN, recovery_action=UNKNOWN)
                for gpu in (FIRST, SECOND)
            ),
            id="not-supported",
        ),
        pytest.param("gpu1.util=!3\n", (FIRST, replace(SECOND, util=UNKNOWN, mem_util=UNKNOWN)), id="mig"),
        pytest.param("gpu1.pids=!4\n", (FIRST, replace(SECOND, pids=UNKNOWN)), id="not-allowed-to-see"),
        pytest.param("gpu.recovery=1\n", (replace(FIRST, recovery_action=1), replace(SECOND, recovery_action=1)),
                     id="reset-recommended"),
        pytest.param("gpu1.handle=!15\n",
                     (FIRST, Gpu(idx=1, pci=SECOND.pci, uuid=SECOND.uuid, name=SECOND.name, error="GPU is lost",
                                 code=15)),
                     id="lost-and-named-as-before"),
        pytest.param("gpu1.power=!999\ngpu1.temp=!15\n",
                     (FIRST, replace(SECOND, power_w=UNKNOWN, temp_c=UNKNOWN, error="GPU is lost", code=15)),
                     id="lost-beats-unknown"),
        pytest.param("gpu0.power=!16\n",
                     (replace(FIRST, power_w=UNKNOWN, error="GPU requires restart", code=16), SECOND),
                     id="reset-required"),
        pytest.param("gpu0.power=!999\n", (replace(FIRST, power_w=UNKNOWN, error="Unknown Error", code=999), SECOND),
                     id="unknown-error"),
        pytest.param("gpus=0\n", (), id="no-gpu"),
        pytest.param("", (FIRST, SECOND), id="all-well-again"),
    ],
)  # fmt: skip
def test_readings(asked: Asked, script: str, gpus: tuple[Gpu, ...]) -> None:
    asked(TWO_GPUS)  # both GPUs have been seen
    reading = asked(TWO_GPUS + script)
    assert (reading.gpus, reading.error) == (gpus, "")


def test_a_gpu_without_any_figure(asked: Asked) -> None:
    script = "driver=580.95.05\ngpus=1\ngpu.uuid=GPU-aaaa\ngpu.pci=00000000:3B:00.0\ngpu.name=NVIDIA GB10\n"
    assert asked(script).gpus == (NOTHING,)


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("init=!9", 9, "Driver Not Loaded"),
        ("init=!18", 18, "RM has detected an NVML/RM version mismatch."),
        ("init=!999", 999, "Unknown Error"),
        ("gpus=!15", 15, "GPU is lost"),
    ],
)
def test_an_error_of_the_whole_is_its_last_word(asked: Asked, script: str, code: int, words: str) -> None:
    asked.ended()
    reading = asked(TWO_GPUS + script + "\n")
    assert reading == Nvml(t=reading.t, error=words, code=code)
    assert asked.process is not None
    assert asked.process.wait(20) == 0 == asked.ended()


def test_an_open_library_outlives_an_upgrade(asked: Asked) -> None:
    """Only who comes anew meets the mismatch: what runs goes on."""
    assert asked(TWO_GPUS).error == ""
    assert asked(TWO_GPUS + "init=!18\n").gpus == (FIRST, SECOND)


def test_while_a_reset_is_due_the_library_is_not_kept_open(asked: Asked) -> None:
    assert asked(TWO_GPUS + "gpu0.recovery=4\n").error == ""
    assert asked(TWO_GPUS + "init=!9\n").code == 9  # it was opened anew
    assert asked.ended() == 0


def test_without_the_library(tmp_path: Path) -> None:
    environment = FakeNvml(tmp_path).environment
    del environment["LD_LIBRARY_PATH"]
    command = [sys.executable, "-m", "appliance", "nvml-probe"]
    done = subprocess.run(command, input=b"\n", capture_output=True, env=environment, timeout=60)
    reading = decode(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert reading == Nvml(t=reading.t, error="NVML Shared Library Not Found", code=12)


def test_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "nvml-probe", "--help"], capture_output=True, timeout=60, text=True
    )
    assert done.returncode == 0 and "nvml-probe" in done.stderr
