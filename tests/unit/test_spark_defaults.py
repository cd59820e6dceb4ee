"""spark-defaults.conf, and the image's: every setting has its reason beside it, and both agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_spark.jars import known_sets

ROOT = Path(__file__).parents[2]
SHIPPED, IMAGE = ROOT / "spark-defaults.conf", ROOT / "conf" / "docker" / "spark-defaults.conf"
ELSEWHERE_IN_THE_IMAGE = {
    "spark.jars.packages",
    "spark.jars.excludes",
    "spark.driver.extraClassPath",
    "spark.executor.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
}

each_file = pytest.mark.parametrize("file", [SHIPPED, IMAGE], ids=["shipped", "image"])


def is_setting(line: str) -> bool:
    return line.startswith("spark.")


def settings(file: Path) -> dict[str, str]:
    lines = filter(is_setting, file.read_text().splitlines())
    return dict(line.split() for line in lines)  # type: ignore[misc]


@each_file
def test_every_setting_follows_a_reason(file: Path) -> None:
    """A setting or a group of them stands directly below a comment."""
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if is_setting(line):
            assert lines[number - 1].startswith("#") or is_setting(lines[number - 1]), line


@each_file
def test_no_setting_is_given_twice(file: Path) -> None:
    keys = [line.split()[0] for line in file.read_text().splitlines() if is_setting(line)]
    assert len(keys) == len(set(keys))


@each_file
def test_every_setting_is_one_key_and_one_value(file: Path) -> None:
    """Spark takes the rest of the line as the value, comments included."""
    for line in filter(is_setting, file.read_text().splitlines()):
        assert len(line.split()) == 2, line
        assert "#" not in line


@each_file
def test_no_value_holds_a_backslash(file: Path) -> None:
    """The file is read as Java properties, where one vanishes: `\\s` in a pattern becomes `s`."""
    lines = filter(is_setting, file.read_text().splitlines())
    assert not [line for line in lines if "\\" in line]


def test_the_packages_are_the_delta_of_the_jar_list() -> None:
    (package,) = (name for name in known_sets()["delta"].sha256 if ":delta-spark_" in name)
    assert settings(SHIPPED)["spark.jars.packages"] == package


def test_no_jar_of_the_jar_list_is_excluded() -> None:
    groups = {name.split(":")[0] for name in known_sets()["delta"].sha256}
    excluded = {one.split(":")[0] for one in settings(SHIPPED)["spark.jars.excludes"].split(",")}
    assert not groups & excluded


def test_the_shipped_file_names_no_place_of_the_image() -> None:
    assert not [value for value in settings(SHIPPED).values() if value.startswith("/opt")]
    option, _, log_settings = settings(SHIPPED)["spark.driver.extraJavaOptions"].partition("=")
    assert option == "-Dlog4j2.configurationFile"
    assert (ROOT / log_settings).is_file()


def test_the_image_differs_in_the_places_of_jars_and_logging_settings_only() -> None:
    shipped, image = (
        {key: value for key, value in settings(file).items() if key not in ELSEWHERE_IN_THE_IMAGE}
        for file in (SHIPPED, IMAGE)
    )
    assert shipped == image
    assert not settings(IMAGE).keys() & {"spark.jars.packages", "spark.jars.excludes"}
