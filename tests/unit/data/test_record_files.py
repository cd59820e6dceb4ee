"""Records of files: what they are, in which order, and what is refused."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.sections import Dataset
from bench_spark.data import scanning as files
from bench_spark.data.records import RecordFiles
from bench_spark.data.scanning import CsvScanner, LengthPrefixScanner, LineScanner, Scanner
from bench_spark.errors import ConfigurationError, RunError


def opened(path: Path, **keys: Any) -> RecordFiles:
    return RecordFiles(Dataset(path=str(path), **keys))


def all_of(source: RecordFiles) -> list[bytes]:
    return list(source.read(np.arange(source.count)).bodies)


def scanned(scanner: Scanner, content: bytes, block_bytes: int) -> list[bytes]:
    spans = [
        scanner.scan(content[at : at + block_bytes]) for at in range(0, len(content), block_bytes)
    ]
    spans.append(scanner.finish())
    return [
        content[start : start + length]
        for part in spans
        for start, length in zip(part.starts.tolist(), part.lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "content", "keys", "records"),
    [
        ("a.txt", b"one\ntwo\r\n\n\r\nthree", {}, [b"one", b"two", b"three"]),
        ("a.txt", b"\xff\x00\n \n", {}, [b"\xff\x00", b" "]),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}\n', {}, [b'{"a": 1}', b'{"a": 2}']),
        ("a.csv", b'id,text\n1,"a\nb"\n2,"c ""d"""\n', {}, [b'1,"a\nb"', b'2,"c ""d"""']),
        ("a.csv", b"1,2\n3,4\n", {"header_row": False}, [b"1,2", b"3,4"]),
        (
            "a.bin",
            b"\0\0\0\2ab\0\0\0\0\0\0\0\1c",
            {"format": "length_prefixed"},
            [b"ab", b"", b"c"],
        ),
        ("a.bin", b"one\ntwo\n", {"format": "files"}, [b"one\ntwo\n"]),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_records_are_the_bytes_between_their_ends(
    tmp_path: Path,
    name: str,
    content: bytes,
    keys: dict[str, Any],
    records: list[bytes],
    compressed: bool,
) -> None:
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(content) if compressed else content)
    source = opened(path, **keys)
    assert all_of(source) == records
    assert source.sizes().largest_bytes == max(map(len, records))


@given(
    st.binary(max_size=60).map(
        lambda raw: raw.translate(bytes(b"\n\r a"[i % 4] for i in range(256)))
    ),
    st.integers(1, 7),
)
def test_lines_are_the_same_however_the_blocks_are_cut(content: bytes, block_bytes: int) -> None:
    lines = [re.sub(rb"\r\Z", b"", line) for line in content.split(b"\n")]
    assert scanned(LineScanner(), content, block_bytes) == [line for line in lines if line]


@given(st.lists(st.binary(max_size=9), max_size=9), st.integers(1, 7))
def test_length_prefixed_records_survive_any_cut(records: list[bytes], block_bytes: int) -> None:
    content = b"".join(len(one).to_bytes(4, "big") + one for one in records)
    assert scanned(LengthPrefixScanner(), content, block_bytes) == records


@given(st.integers(1, 9))
def test_rows_with_quoted_ends_of_lines_survive_any_cut(block_bytes: int) -> None:
    content = b'h\n"a\n\r\n""b"\r\nc\n"\n"\n'
    expected = [b'"a\n\r\n""b"', b"c", b'"\n"']
    assert scanned(CsvScanner(has_header_row=True), content, block_bytes) == expected


def test_a_directory_is_all_its_files_in_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"3\n4\n")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1\n2\n"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "d.txt").write_bytes(b"5")
    (tmp_path / "_SUCCESS").write_bytes(b"x\n")
    (tmp_path / ".hidden").write_bytes(b"x\n")
    source = opened(tmp_path)
    assert all_of(source) == [b"1", b"2", b"3", b"4", b"5"]
    order = [4, 0, 3, 1, 1]
    assert list(source.read(np.array(order)).bodies) == [b"5", b"1", b"4", b"2", b"2"]
    assert source.place(3) == f"{tmp_path / 'b.txt'}:2"
    source.close()


def test_more_files_than_may_be_open_are_read_all_the_same(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}").write_bytes(b"%d" % number)
    source = opened(tmp_path, format="files")
    order = random.Random(1).sample(range(200), 200)
    assert list(source.read(np.array(order)).bodies) == [b"%d" % number for number in order]
    assert source.place(7) == str(tmp_path / "007")
    source.close()


def test_the_line_of_a_record_counts_blank_lines_and_those_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'h\n\n"a\nb"\nc\n')
    assert [opened(path).place(number) for number in (0, 1)] == [f"{path}:3", f"{path}:5"]


def test_blocks_of_a_large_file_join_without_a_seam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BLOCK_BYTES", 1000)
    records = [random.Random(n).randbytes(n % 90 + 1).hex().encode() for n in range(500)]
    path = tmp_path / "large.txt"
    path.write_bytes(b"\n".join(records))
    source = opened(path)
    assert all_of(source) == records
    sizes = source.sizes()
    assert records[sizes.largest] == max(records, key=len)
    assert sizes.mean_bytes == pytest.approx(sum(map(len, records)) / 500)


@pytest.mark.parametrize(
    ("content", "name", "keys", "told"),
    [
        (None, "missing.txt", {}, "there is no such file"),
        (b"", "empty.txt", {}, "holds no record"),
        (b"\n\r\n", "blank.txt", {}, "holds no record"),
        (b"h\n", "only-header.csv", {}, "holds no record"),
        (b'h\n"a\n', "open.csv", {}, "a quoted field is never closed"),
        (b"\0\0\0\5ab", "cut.bin", {"format": "length_prefixed"}, "ends at byte 6, inside"),
        (b"\0\0", "cut.bin", {"format": "length_prefixed"}, "ends at byte 2, inside"),
        (b"no gzip", "a.gz", {}, "cannot be read"),
        (gzip.compress(b"a\n" * 999, mtime=0)[:-9], "cut.gz", {}, "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(
    tmp_path: Path, content: bytes | None, name: str, keys: dict[str, Any], told: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{re.escape(str(path))}.*{told}"):
        opened(path, **keys)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no files"):
        opened(tmp_path)


def test_a_file_that_is_cut_while_it_is_read_fails_the_run(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    source = opened(path)
    path.write_bytes(b"o")
    for numbers in ([0, 1], [1, 0]):
        with pytest.raises(RunError, match="shorter"):
            source.read(np.array(numbers))
