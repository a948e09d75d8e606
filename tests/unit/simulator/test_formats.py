"""Workload files as published, and what is said of wrong lines."""

import gzip
from pathlib import Path

import pytest

from isochrone.simulator import formats
from isochrone.simulator.formats import read
from isochrone.simulator.lengths import read_lengths
from isochrone.simulator.workload import BadWorkload, Call, successors, without_lonely_tails

SECOND = 10**9


def file(tmp_path: Path, name: str, *lines: str) -> str:
    path = tmp_path / name
    text = "\n".join(lines) + "\n"
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def test_the_public_schema(tmp_path: Path) -> None:
    workload = read(
        file(
            tmp_path,
            "a.jsonl.gz",
            '{"t_ms":1500,"input_tokens":40,"output_tokens":7,"class":"chat","hash_block_tokens":16,'
            '"hash_ids":[5,6,7],"session_id":3}',
            '{"t_ms":500.5,"input_tokens":9,"output_tokens":1,"session_id":3,"gap_ms":250}',
        )
    )
    early, late = workload.calls
    assert (early.at, early.prompt_tokens, early.gap) == (0, 9, SECOND // 4)
    assert (late.at, late.output_tokens, late.route, late.session) == (999_500_000, 7, "chat", 3)
    assert late.ids == (5, 6), "the third block is not whole: 40 tokens are two of 16 and a half"
    assert workload.block_tokens == 16


def test_mooncake(tmp_path: Path) -> None:
    workload = read(
        file(
            tmp_path,
            "m.jsonl",
            '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}',
            '{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 9]}',
        )
    )
    assert [call.ids for call in workload.calls] == [(0, 1), (0,)]
    assert workload.calls[1].at == 3 * SECOND
    assert workload.block_tokens == 512


def test_azure_and_burstgpt(tmp_path: Path) -> None:
    azure = read(
        file(
            tmp_path,
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:15:46.6805900,374,44",
            "2023-11-16 18:15:50.9951690,396,109",
        )
    )
    assert [call.prompt_tokens for call in azure.calls] == [374, 396]
    assert abs(azure.calls[1].at - 4_314_579_000) < 1000
    burst = read(
        file(
            tmp_path,
            "burst.csv",
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,472,18,490,Conversation log",
            "45,ChatGPT,1087,0,1087,API log",
            "118,GPT-4,417,276,693,API log",
        )
    )
    assert [(call.at, call.output_tokens) for call in burst.calls] == [(0, 18), (113 * SECOND, 276)]
    assert burst.notes == ["1 lines without an answer left out"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            '{"t_ms":1,"input_tokens":-3,"output_tokens":1}',
            "line 2, field 'input_tokens': expected a whole number from 1",
        ),
        ('{"t_ms":1,"input_tokens":2.5,"output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":1,"input_tokens":99999999,"output_tokens":1}', "found 99999999"),
        ('{"t_ms":1,"input_tokens":5,"output_tokens":"many"}', "field 'output_tokens'"),
        ('{"t_ms":-1,"input_tokens":5,"output_tokens":1}', "field 't_ms': expected a time of 0 or more"),
        ('{"t_ms":1,"input_tokens":5}', "field 'output_tokens': expected a whole number"),
        ('{"t_ms":1,"input_tokens":50,"output_tokens":1,"hash_ids":[1,"x"],"hash_block_tokens":16}', "'hash_ids'"),
        ('{"t_ms":1,"input_tokens":50,"output_tokens":1,"hash_ids":[1]}', "field 'hash_block_tokens'"),
        ('{"t_ms":1,"input_tokens":1e400,"output_tokens":1}', "line 2: expected a JSON object"),
        ('{"t_ms":1,"input_tokens":1e300,"output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":1,"input_tokens":"nan","output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":1,"input_tokens":"inf","output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":1,"input_tokens":true,"output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":1,"input_tokens":0,"output_tokens":1}', "field 'input_tokens'"),
        ('{"t_ms":"nan","input_tokens":1,"output_tokens":1}', "field 't_ms'"),
        (
            '{"t_ms":1e300,"input_tokens":1,"output_tokens":1}',
            "expected a time of 0 or more, at most a year",
        ),
        ('{"t_ms":1,"input_tokens":5,"output_tokens":1,"gap_ms":-1}', "field 'gap_ms'"),
        ('{"t_ms":1,"input_tokens":5,"output_tokens":1,"session_id":true}', "field 'session_id'"),
        ('{"t_ms":1,"input_tokens":5,"output_tokens":1,"class":3}', "field 'class'"),
        ('{"t_ms":1,', "line 2: expected a JSON object"),
        ("[1, 2]", "line 2: expected a JSON object, found [1, 2]"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = file(tmp_path, "w.jsonl", '{"t_ms":0,"input_tokens":5,"output_tokens":1}', line)
    with pytest.raises(BadWorkload) as refused:
        read(path)
    assert said in str(refused.value)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("yesterday,4,1", "line 3, field 'TIMESTAMP': expected a date and time"),
        ("2023-11-16 18:15:47,-4,1", "line 3, field 'ContextTokens': expected a whole number from 1"),
        (
            "2023-11-16 18:15:47,4",
            "line 3, field 'GeneratedTokens': expected a whole number from 1 to 10,000,000",
        ),
        ("x" * 200_000 + ",4,1", "line 3: expected comma-separated values, but field larger"),
    ],
)
def test_a_wrong_line_of_a_table_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = file(tmp_path, "w.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,4,1", line)
    with pytest.raises(BadWorkload) as refused:
        read(path)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"client":1,"windows_600s":[],"lengths":null}', "generate:servegen,file="),
        ('{"input_tokens":1,"output_tokens":2}', "generate:lengths,file="),
        ('{"a":1}', "expected the fields of a known format"),
        ("", "holds no request"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(BadWorkload) as refused:
        read(file(tmp_path, "x.jsonl", line))
    assert said in str(refused.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match="cannot be read"):
        read(str(tmp_path / "nowhere.jsonl"))
    broken = tmp_path / "b.jsonl.gz"
    whole = gzip.compress(b"".join(b'{"t_ms":%d,"input_tokens":4,"output_tokens":2}\n' % k for k in range(1000)))
    for content in (b"not gzip", whole[:-500], whole[:100] + b"\xff" * 60 + whole[160:], gzip.compress(b"\xff\xfe")):
        broken.write_bytes(content)
        with pytest.raises(BadWorkload, match=r"cannot be read|expected a JSON object"):
            read(str(broken))


def test_lengths(tmp_path: Path) -> None:
    path = file(tmp_path, "l.jsonl", '{"input_tokens":3,"output_tokens":4,"class":"sharegpt"}')
    assert read_lengths(path) == [(3, 4, "sharegpt")]


def test_tails_that_nobody_shares_are_cut() -> None:
    calls = [Call(0, 90, 1, ids=(1, 2, 3)), Call(0, 90, 1, ids=(1, 4)), Call(0, 90, 1, ids=(7, 8))]
    without_lonely_tails(calls)
    assert [call.ids for call in calls] == [(1,), (1,), ()]


def test_turns_follow_each_other_within_a_copy() -> None:
    calls = [Call(0, 1, 1, session=1), Call(1, 1, 1, session=1, copy=1), Call(2, 1, 1), Call(3, 1, 1, session=1)]
    assert successors(calls) == {0: 3}


def test_a_file_of_another_machine_is_read_from_what_was_sent_along(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"t_ms":0,"input_tokens":4,"output_tokens":2}\n'
    monkeypatch.setitem(formats.LENT, "/far/away.jsonl", line)
    monkeypatch.setitem(formats.LENT, "/far/away.jsonl.gz", gzip.compress(line * 2))
    assert len(read("/far/away.jsonl").calls) == 1
    assert len(read("/far/away.jsonl.gz").calls) == 2
