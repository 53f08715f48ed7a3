from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import EXIT_USAGE, UsageError
from appliance.quantity import UNKNOWN, Maybe
from appliance.samples import (
    Canary,
    Cgroup,
    Fs,
    Gpu,
    Health,
    Lag,
    Learned,
    Ledger,
    Line,
    Metrics,
    Milestone,
    Notice,
    Nvml,
    Proc,
    Raw,
    Said,
    Setting,
    StateFile,
    Usual,
    Xid,
)
from appliance.wire import timeline, timelinewrite
from appliance.wire.findings import Reader
from appliance.wire.vllmlog import PHASES

CORPUS = sorted((Path(__file__).parents[2] / "corpus/timelines/malformed").glob("*.jsonl"))
HEAD = b'{"config": {}}\n'
Figures = tuple[Maybe[float], Maybe[float], Maybe[float]]


def read(*lines: object) -> list[Raw | Notice]:
    text = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return [recorded.sample for recorded in timeline.read([HEAD, *text], "x.jsonl").samples]


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_malformed_recording_is_refused_with_its_line(file: Path) -> None:
    """Each file is named after what is wrong; its line is the last."""
    with file.open("rb") as stream, pytest.raises(UsageError) as caught:
        recording = timeline.read(stream, file.name)
        list(recording.samples)
    assert caught.value.exit_status == EXIT_USAGE
    assert caught.value.message.startswith(f"{file.name}:{len(file.read_bytes().splitlines()) or 1}: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"t": 1, "src": "metrics", "values": {"a": NaN}}', "NaN is no number"),
        (b'{"t": Infinity, "src": "metrics"}', "Infinity is no number"),
        (b'{"t": 1e999, "src": "metrics"}', "t: is not a finite number"),
        (b'{"t": 1, "src": "proc", "pid": ' + b"9" * 400 + b"}", "pid: is not a finite number"),
        (b'{"t": 1, "src": "proc", "pid": ' + b"9" * 6000 + b"}", "not JSON"),
        (b'{"t": 1, "src": "proc", "pid": 1.5}', "pid: 1.5 is not a whole number"),
        (b'{"t": 1, "src": "proc"}', "pid: is missing"),
        (b'{"t": true, "src": "health"}', "t: True is not a number"),
        (b'{"src": "health"}', "t: is missing"),
        (b'{"t": 1}', "src: is missing"),
        (b'{"t": 1, "src": 5}', "src: 5 is not a string"),
        (b'{"t": 1, "src": "metrics", "values": []}', "values: [] is not an object"),
        (b'{"t": 1, "src": "metrics", "values": {"a": "1"}}', "values.a: '1' is not a number"),
        (b'{"t": 1, "src": "nvml", "gpus": [{"util": "high"}]}', "gpus[0].util: 'high' is not a number"),
        (b'{"t": 1, "src": "nvml", "gpus": [{"remapped_rows": 3}]}', "remapped_rows"),
        (b'{"t": 1, "src": "fs", "removed": 1}', "removed: 1 is not true or false"),
        (b'{"t": 1, "src": "journal", "msg": "\xff"}', "byte 36 is not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"nonsense", "not JSON: Expecting value at column 1"),
        (b"[]", "not a JSON object"),
        (b" " * (timeline.LONGEST + 1) + b"{}", "longer than"),
    ],
)
def test_what_is_wrong_is_said(line: bytes, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(line)
    assert "x.jsonl:2: " in caught.value.message
    assert said in caught.value.message


def test_lines_out_of_order_are_refused() -> None:
    with pytest.raises(UsageError, match=r"x\.jsonl:3: t: 4 is earlier than the line before it \(5\)"):
        read({"t": 5, "src": "health"}, {"t": 4, "src": "health"})


@pytest.mark.parametrize("head", [b"", b'{"t": 1, "src": "health"}', b'{"config": 3}', b'{"config": {"tp": 0}}'])
def test_the_first_line_is_the_setting(head: bytes) -> None:
    with pytest.raises(UsageError, match=r"^x\.jsonl:1: "):
        timeline.read([head], "x.jsonl")


def test_what_is_not_known_is_passed_over_and_counted() -> None:
    lines = [HEAD, b'{"t": 1, "src": "weather", "sun": 1}', b'{"t": 1, "src": "health", "http": 200, "mood": "good"}']
    recording = timeline.read(lines, "x")
    assert [recorded.sample for recorded in recording.samples] == [Health(t=1.0, http=200)]
    assert recording.unknown == {"weather": 1}


def test_nothing_missing_becomes_zero() -> None:
    metrics, nvml, ledger, proc, cgroup = read(
        {"t": 1, "src": "metrics", "values": {"vllm:a": None}},
        {"t": 1, "src": "nvml", "gpus": [{"pci": "00000000:65:00.0", "util": None}]},
        {"t": 1, "src": "ledger"},
        {"t": 1, "src": "proc", "pid": 7},
        {"t": 1, "src": "cgroup"},
    )
    assert isinstance(metrics, Metrics) and metrics.values == {} and metrics.http is UNKNOWN
    assert isinstance(nvml, Nvml) and nvml.gpus == (Gpu(pci="0000:65:00"),)
    assert ledger == Ledger(t=1.0)
    assert proc == Proc(t=1.0, pid=7)
    assert cgroup == Cgroup(t=1.0)


def test_labels_are_summed_but_for_those_that_part_unlike_figures() -> None:
    values = {
        'vllm:request_success_total{finished_reason="stop"}': 3,
        'vllm:request_success_total{finished_reason="length"}': 2,
        'vllm:engine_sleep_state{model_name="m",sleep_state="awake"}': 1,
        'vllm:engine_sleep_state{model_name="m",sleep_state="discard_all"}': 0,
    }
    (sample,) = read({"t": 1, "src": "metrics", "http": 200, "values": values})
    assert isinstance(sample, Metrics)
    assert sample.values == {
        "vllm:request_success_total": 5.0,
        'vllm:engine_sleep_state{sleep_state="awake"}': 1.0,
        'vllm:engine_sleep_state{sleep_state="discard_all"}': 0.0,
    }


def test_what_nvml_tells_of_all_gpus_holds_for_each() -> None:
    rows = {"correctable": 1, "uncorrectable": 2, "pending": True, "failed": False}
    line = {"t": 1, "src": "nvml", "gpus": [{"idx": 0}, {"idx": 1, "recovery_action": 0}], "recovery_action": 2}
    (sample,) = read({**line, "remapped_rows": rows})
    assert isinstance(sample, Nvml)
    assert [gpu.recovery_action for gpu in sample.gpus] == [2, 0]
    assert {gpu.remapped_rows for gpu in sample.gpus} == {(1, 2, True, False)}


@pytest.mark.parametrize(
    ("learned", "usual"),
    [
        ({"idle_power_w": 50, "busy_power_w": 300, "busy_mem_util": 40}, {"": (50.0, 300.0, 40.0)}),
        ({"idle": {"power_w": 50}, "busy": {"power_w": 300, "mem_util": 40}}, {"": (50.0, 300.0, 40.0)}),
        (
            {"busy_power_w": [300, 310]},
            {"0000:01:00": (UNKNOWN, 300.0, UNKNOWN), "0000:02:00": (UNKNOWN, 310.0, UNKNOWN)},
        ),
        (
            {"idle_power_w": 50, "gpus": {"00000000:01:00.0": {"busy_power_w": 300}}},
            {"": (50.0, UNKNOWN, UNKNOWN), "0000:01:00": (50.0, 300.0, UNKNOWN)},
        ),
        ({"mood": "good", "busy_power_w": None}, {}),
    ],
)
def test_baselines_are_read_in_the_forms_that_people_write(learned: object, usual: dict[str, Figures]) -> None:
    head = json.dumps({"config": {"engine_gpu_pci": ["0000:01:00", "0000:02:00"], "learned": learned}}).encode()
    found = timeline.read([head], "x").setting.learned.gpus
    assert {pci: (gpu.idle_power_w, gpu.busy_power_w, gpu.busy_mem_util) for pci, gpu in found.items()} == usual


_number = st.one_of(st.just(UNKNOWN), st.floats(-1e6, 1e6))
_count = st.one_of(st.just(UNKNOWN), st.integers(-1000, 10**12))
_words = st.text(max_size=20)
_t = st.floats(0, 1e9)
_gpus = st.lists(
    st.builds(
        Gpu, pci=st.sampled_from(["", "0000:01:00"]), uuid=_words, idx=_count, util=_number, power_w=_number,
        pids=st.one_of(st.just(UNKNOWN), st.lists(st.integers(1, 9999)).map(tuple)), recovery_action=_count,
        remapped_rows=st.one_of(st.just(UNKNOWN), st.just((1, 0, True, False))), error=_words, code=_count,
    ), max_size=3,
)  # fmt: skip
_samples = st.one_of(
    st.builds(Metrics, t=_t, http=_count, values=st.dictionaries(st.sampled_from(["a", "vllm:b"]), st.floats(0, 9))),
    st.builds(Health, t=_t, http=_count, latency_ms=_number, error=_words),
    st.builds(Nvml, t=_t, gpus=_gpus.map(tuple), driver=_words, error=_words, code=_count, stuck=st.integers(0, 3)),
    st.builds(Ledger, t=_t, inflight=_count, oldest_silent_s=_number, since_any_byte_s=_number, structured=_count),
    st.builds(Proc, t=_t, pid=st.integers(1, 9999), ppid=_count, name=_words, cpu_pct=_number, exit_code=_count),
    st.builds(Line, t=_t, src=st.sampled_from(["journal", "kernel", "systemd"]), msg=_words, unit=_words, boot=_words),
    st.builds(Cgroup, t=_t, events=st.dictionaries(st.sampled_from(["oom_kill"]), st.integers(0, 9)), peak_gib=_number,
              read_bytes=_count),
    st.builds(Fs, t=_t, path=_words, removed=st.booleans()),
    st.builds(StateFile, t=_t, path=_words, value=_words),
    st.builds(Notice, t=_t, kind=st.sampled_from(["jit", "shm-wait", "line"])),
    st.builds(Lag, t=_t, late_s=st.floats(0, 1e6)),
    st.builds(Canary, t=_t, outstanding=st.booleans()),
)  # fmt: skip


@given(_samples, st.sampled_from(["", "chat"]))
def test_what_is_written_reads_back(sample: Raw | Notice, engine: str) -> None:
    line = json.dumps(timelinewrite.record_of(sample, engine), allow_nan=False)
    (recorded,) = timeline.read([HEAD, line.encode()], "x").samples
    assert (recorded.engine, recorded.sample, recorded.line) == (engine, sample, 2)


def test_a_setting_reads_back() -> None:
    usual = Usual(idle_power_w=50.0, busy_power_w=300.0)
    learned = Learned(gpus={"": usual, "0000:01:00": Usual(busy_mem_util=40.0, idle_power_w=50.0, busy_power_w=300.0)},
                      prefill_rate=8000.0)  # fmt: skip
    setting = Setting(engine="chat", tp=2, gpus=2, engine_gpu_pci=("0000:01:00", "0000:02:00"), learned=learned)
    head = timelinewrite.header(setting, {"hang": {"confirm": "60s"}})
    recording = timeline.read([json.dumps(head).encode()], "x")
    assert recording.setting == setting
    assert recording.raw["supervisor"] == {"hang": {"confirm": "60s"}}


@given(st.sampled_from(PHASES), st.sampled_from(["", "a1"]), st.booleans())
def test_a_milestone_that_the_launcher_told_reads_back(phase: str, start: str, joining: bool) -> None:
    milestone = Milestone(t=1.0, phase=phase, start=start, joining=joining)
    (recorded,) = timeline.read([HEAD, json.dumps(timelinewrite.record_of(milestone)).encode()], "x").samples
    assert Reader().read(recorded.sample) == (milestone,)


def test_what_is_found_in_a_line_is_not_written_again() -> None:
    assert timelinewrite.record_of(Xid(t=1.0, number=79)) is None
    assert timelinewrite.record_of(Said(t=1.0, cause="kv-none", message="")) is None


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_do_more_than_be_refused(lines: list[bytes]) -> None:
    try:
        list(timeline.read([HEAD, *lines], "x").samples)
    except UsageError as error:
        assert error.message.startswith("x:")
