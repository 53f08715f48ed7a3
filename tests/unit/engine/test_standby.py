from __future__ import annotations

from pathlib import Path

import pytest

from appliance.engine.standby import Standby, Unfit
from appliance.wire.vllmimports import imports


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    """A runtime with libgomp, whose Python tells what it was started with."""
    libraries = tmp_path / "lib/python3.11/site-packages/torch/lib"
    libraries.mkdir(parents=True)
    (libraries / "libgomp.so.1").touch()
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    told = "$LD_PRELOAD|$TORCHINDUCTOR_CPP_DYNAMIC_THREADS|$OWN|$*"
    python.write_text(f'#!/bin/bash\nshift\nprintf \'{{"unfit": "%s"}}\\n\' "{told}" >&"$1"\n')
    python.chmod(0o755)
    return tmp_path


def told(runtime: Path, device: str, **env: str) -> list[str]:
    """LD_PRELOAD, TORCHINDUCTOR_CPP_DYNAMIC_THREADS, OWN and the arguments without the socket."""
    standby = Standby.begin(str(runtime / "bin/vllm"), env, device, 10.0)
    try:
        with pytest.raises(Unfit) as fault:
            standby.start(("vllm",), env, 1)
        assert not standby.alive and standby.pid == 0
    finally:
        standby.close()
    words = str(fault.value).split("|")
    return [*words[:3], words[3].partition(" ")[2]]


def test_libraries_are_loaded_as_vllm_has_them_loaded_for_its_children(runtime: Path) -> None:
    gomp = f"{runtime}/lib/python3.11/site-packages/torch/lib/libgomp.so.1"
    assert told(runtime, "cpu", OWN="x") == [gomp, "1", "x", " ".join(imports("cpu"))]


def test_a_gpu_needs_nothing_of_that_and_an_openmp_of_the_operators_stays(runtime: Path) -> None:
    assert told(runtime, "cuda") == ["", "", "", " ".join(imports("cuda"))]
    assert told(runtime, "cpu", LD_PRELOAD="/not/there/libiomp5.so")[0] == "/not/there/libiomp5.so"
    assert told(runtime, "cpu", LD_PRELOAD="/not/there/liba.so")[0].startswith("/not/there/liba.so:/")


def test_another_environment_is_another_program(runtime: Path) -> None:
    standby = Standby.begin(str(runtime / "bin/vllm"), {"OWN": "x", "SAME": ""}, "cpu", 10.0)
    try:
        with pytest.raises(Unfit, match="the environment has another OTHER, OWN"):
            standby.start(("vllm",), {"OWN": "y", "SAME": "", "OTHER": ""}, 1)
    finally:
        standby.close()
        standby.close()


def test_what_cannot_be_started_is_unfit(tmp_path: Path) -> None:
    standby = Standby.begin(str(tmp_path / "bin/vllm"), {}, "cpu")
    with pytest.raises(Unfit, match="it cannot be started: "):
        standby.start(("vllm",), {}, 1)
    assert (standby.alive, standby.pid) == (False, 0)
    standby.close()
