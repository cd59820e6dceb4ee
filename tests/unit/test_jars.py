"""Jar sets, without a network: whatever would be fetched is refused or already there."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from bench_spark import jars
from bench_spark.errors import EnvironmentNotReady
from bench_spark.jars import JarSet, file_name, jar_set, known_sets

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BENCH_SPARK_CACHE", str(tmp_path))
    monkeypatch.delenv("BENCH_SPARK_JARS", raising=False)
    return tmp_path


class FakeCentral:
    """Stands for Maven Central: what `_fetch_jar` would bring, as files."""

    def __init__(self, fail_at: str = "") -> None:
        self.fail_at = fail_at
        self.fetched: list[str] = []

    def __call__(self, coordinate: str, digest: str, directory: Path) -> None:
        if coordinate == self.fail_at:
            raise EnvironmentNotReady("no network")
        (directory / "repository").mkdir(exist_ok=True)
        (directory / file_name(coordinate)).write_bytes(b"jar")
        self.fetched.append(coordinate)


@pytest.fixture
def central(monkeypatch: pytest.MonkeyPatch) -> FakeCentral:
    fake = FakeCentral()
    monkeypatch.setattr(jars, "_fetch_jar", fake)
    return fake


def test_delta_is_exactly_the_seven_jars_that_spark_lacks() -> None:
    names = {
        re.sub(r"(_[\d._]+)?-[\d.]+\.jar$", "", file_name(c)) for c in known_sets()["delta"].sha256
    }
    assert names == {
        "delta-spark",
        "delta-storage",
        "delta-kernel-api",
        "delta-kernel-defaults",
        "delta-kernel-unitycatalog",
        "unitycatalog-client",
        "unitycatalog-hadoop",
    }


def test_the_jars_of_delta_have_the_version_of_its_wheel() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    assert f"\ndelta-spark=={known_sets()['delta'].version} " in lock
    (spark,) = re.findall(r"^pyspark==(\S+)", lock, re.M)
    assert jars.delta_set(spark) == known_sets()["delta"]


@pytest.mark.parametrize(
    ("version", "coordinate"),
    [
        ("3.5.9", "io.delta:delta-spark_2.12:3.3.3"),
        ("4.0.5", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.0.dev1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_every_spark_has_the_delta_that_fits_it(version: str, coordinate: str) -> None:
    assert jars.delta_set(version).coordinate == coordinate


def test_the_tables_in_the_docs_are_those_of_the_jars() -> None:
    """Of Spark's versions with Delta's coordinate, and with hadoop-aws."""
    docs = (REPOSITORY / "docs" / "cluster.md").read_text()
    delta = dict(re.findall(r"^\| (\d\.\d)[^|]*\| `(io\.delta:\S+)` \|$", docs, re.MULTILINE))
    hadoop = dict(re.findall(r"^\| (\d\.\d) \| (3\.\d\.\d) \|$", docs, re.MULTILINE))
    known = jars.delta_sets()
    assert delta == {spark: each.coordinate for spark, each in known.items()}
    assert hadoop == {spark: each.hadoop for spark, each in known.items()}
    assert set(re.findall(r"hadoop-(?:aws|azure):([\d.]+)", docs)) == {known["4.2"].hadoop}
    assert known["4.2"].hadoop_aws in jars.known_sets()["hadoop-aws"].sha256


@pytest.mark.parametrize("version", ["3.4.4", "4.3.0", "5.0.0"])
def test_a_spark_that_no_delta_fits_is_refused_with_those_that_one_does(version: str) -> None:
    with pytest.raises(EnvironmentNotReady) as refused:
        jars.delta_set(version)
    assert str(refused.value) == (
        f"no Delta Lake fits Spark {version}: bench-spark runs on Spark 3.5, 4.0, 4.1, 4.2"
    )


def test_one_delta_is_among_the_everyday_sets() -> None:
    assert jars.everyday_sets() == ["delta", "kafka", "qpid"]


@pytest.mark.parametrize("name", known_sets())
def test_a_set_holds_one_version_of_each_artifact(name: str) -> None:
    parts = [coordinate.split(":") for coordinate in known_sets()[name].sha256]
    artifacts = [(group, artifact, *kind) for group, artifact, _, *kind in parts]
    assert len(set(artifacts)) == len(artifacts)


def test_kafka_and_its_clients_have_the_same_version() -> None:
    versions = {
        c.split(":")[2] for c in known_sets()["kafka"].sha256 if c.startswith("org.apache.kafka:")
    }
    assert versions == {known_sets()["kafka"].version}


def test_kafkas_tools_are_of_the_broker_they_run_against() -> None:
    assert known_sets()["kafka-tools"].version == known_sets()["kafka"].version


def test_the_set_up_leaves_the_tools_of_the_benchmarks_out(
    cache: Path, central: FakeCentral
) -> None:
    assert jars.main([]) == 0
    kept = {path.name for path in (cache / "jars").iterdir() if path.is_dir()}
    assert kept == {known_sets()[name].directory.name for name in ("delta", "kafka", "qpid")}
    assert jars.main(["kafka-tools"]) == 0
    assert known_sets()["kafka-tools"].directory.is_dir()


def test_a_missing_set_that_must_not_be_fetched_is_one_clear_sentence(cache: Path) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"the jars of Delta Lake .* run `make setup`"):
        jar_set("delta", fetch=False)


def test_a_set_is_fetched_once_with_a_word_about_it(cache: Path, central: FakeCentral) -> None:
    said: list[str] = []
    first = jar_set("qpid", say=said.append)
    second = jar_set("qpid", fetch=False, say=said.append)
    assert first == second
    assert said == ["fetching Qpid Broker-J 10.1.0 from Maven Central (19 MB, once)"]
    assert sorted(central.fetched) == sorted(known_sets()["qpid"].sha256)
    assert {path.name for path in first[0].parent.iterdir()} == {jar.name for jar in first}


def test_an_interrupted_fetch_leaves_nothing_that_looks_complete(
    cache: Path, central: FakeCentral
) -> None:
    central.fail_at = "org.apache.qpid:qpid-broker:10.1.0"
    with pytest.raises(EnvironmentNotReady, match="no network"):
        jar_set("qpid")
    assert [path for path in (cache / "jars").iterdir() if path.is_dir()] == []
    central.fail_at = ""
    assert len(jar_set("qpid")) == len(known_sets()["qpid"].sha256)


def test_a_set_with_a_jar_missing_is_fetched_again(cache: Path, central: FakeCentral) -> None:
    jar_set("qpid")[3].unlink()
    with pytest.raises(EnvironmentNotReady):
        jar_set("qpid", fetch=False)
    assert all(jar.exists() for jar in jar_set("qpid"))


def test_an_image_brings_its_own_jars(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    (image / "delta").mkdir(parents=True)
    (image / "delta" / "delta-spark.jar").touch()
    monkeypatch.setenv("BENCH_SPARK_JARS", str(image))
    assert jar_set("delta") == [image / "delta" / "delta-spark.jar"]
    with pytest.raises(EnvironmentNotReady, match=r"no jars of Kafka 4\.3\.1 in its folder kafka/"):
        jar_set("kafka")


class Remote:
    """A coordinate as jgo sees it, whose bytes are given."""

    def __init__(self, directory: Path, answers: list[bytes | Exception]) -> None:
        self.file = directory / "repository" / "a-1.jar"
        self.answers = answers

    def resolve(self) -> Path:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_bytes(answer)
        return self.file


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([b"right"], None),
        ([ConnectionError("reset"), b"wrong", b"right"], None),
        ([b"wrong"] * jars.ATTEMPTS, "SHA-256"),
        ([RuntimeError("not found")] * jars.ATTEMPTS, "not found"),
        ([ConnectionError("no route")] * jars.ATTEMPTS, "needs the network once .no route"),
    ],
)
def test_a_jar_is_taken_only_with_the_right_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[bytes | Exception],
    complaint: str | None,
) -> None:
    remote = Remote(tmp_path, list(answers))
    monkeypatch.setattr("jgo.maven.Component.artifact", lambda self: remote)
    digest = hashlib.sha256(b"right").hexdigest()
    if complaint is None:
        jars._fetch_jar("g:a:1", digest, tmp_path)
        assert (tmp_path / "a-1.jar").read_bytes() == b"right"
    else:
        with pytest.raises(EnvironmentNotReady, match=f"(?s)g:a:1.*{complaint}"):
            jars._fetch_jar("g:a:1", digest, tmp_path)
        assert not (tmp_path / "a-1.jar").exists()


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    delta: JarSet = known_sets()["delta"]
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("BENCH_SPARK_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert delta.directory == Path("/home/somebody/.cache/bench-spark/jars/delta-4.4.0")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert delta.directory == Path("/home/somebody/.cache/bench-spark/jars/delta-4.4.0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert delta.directory == tmp_path / "bench-spark" / "jars" / "delta-4.4.0"
    monkeypatch.setenv("BENCH_SPARK_CACHE", str(tmp_path / "own"))
    assert delta.directory == tmp_path / "own" / "jars" / "delta-4.4.0"


def test_the_class_data_archive_is_found_only_for_the_java_it_was_made_with(
    cache: Path, central: FakeCentral, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("17.0.1", "17.0.2"):
        java = tmp_path / version / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "17.0.1"))
    assert jars.class_data_archive() is None
    archive = jars.class_archive_path()
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert jars.class_data_archive() == archive
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "17.0.2"))
    assert jars.class_data_archive() is None
