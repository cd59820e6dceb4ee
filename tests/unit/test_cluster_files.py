"""The files for clusters agree with the image, with its settings and with each other."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bench_spark import __version__
from bench_spark.config.broker import Broker

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "conf" / "kubernetes"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SCRIPTS = sorted((ROOT / "conf").glob("*/*submit.sh"))


def words(text: str) -> set[str]:
    return set(text.split())


# Fields of the operator's API v1beta2, as its Go types name them.
OF_A_SPEC = words(
    "type sparkVersion mode proxyUser image imagePullPolicy imagePullSecrets mainClass "
    "mainApplicationFile arguments sparkConf hadoopConf sparkConfigMap hadoopConfigMap volumes "
    "driver executor deps restartPolicy nodeSelector failureRetries retryInterval pythonVersion "
    "memoryOverheadFactor monitoring batchScheduler timeToLiveSeconds batchSchedulerOptions "
    "sparkUIOptions driverIngressOptions dynamicAllocation"
)
REQUIRED_OF_A_SPEC = {"type", "sparkVersion", "mainApplicationFile", "driver", "executor"}
OF_A_POD = words(
    "template cores coreLimit memory memoryOverhead gpu image configMaps secrets env envVars "
    "envFrom envSecretKeyRefs labels annotations volumeMounts affinity tolerations "
    "podSecurityContext securityContext schedulerName sidecars initContainers hostNetwork "
    "nodeSelector dnsConfig terminationGracePeriodSeconds serviceAccount hostAliases "
    "shareProcessNamespace coreRequest javaOptions lifecycle ports priorityClassName"
)
OF_A_DRIVER = OF_A_POD | {"podName", "kubernetesMaster", "serviceAnnotations", "serviceLabels"}
OF_AN_EXECUTOR = OF_A_POD | {"instances", "deleteOnTermination"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


@pytest.fixture(scope="module")
def application() -> dict[str, Any]:
    (found,) = documents("spark-application.yaml")
    return found


KUBERNETES_VERSIONS = ("1.29", kubernetes_validate.latest_version())


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("name", ["rbac", "files", "driver-pod", "executor-pod"])
def test_a_manifest_is_one_of_the_kubernetes_api(name: str, version: str) -> None:
    for document in documents(f"{name}.yaml"):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_what_the_application_adds_to_a_pod_is_of_the_kubernetes_api(
    application: dict[str, Any], role: str, version: str
) -> None:
    """The operator's own fields are compared above; these it hands on to the pod as they are."""
    asked = application["spec"][role]
    container = {
        key: asked[key] for key in ("env", "volumeMounts", "securityContext") if key in asked
    }
    pod = {key: asked[key] for key in ("affinity", "tolerations", "nodeSelector") if key in asked}
    kubernetes_validate.validate(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": role, "labels": asked.get("labels", {})},
            "spec": {"containers": [{"name": "spark", "image": "spark", **container}], **pod},
        },
        version,
        strict=True,
    )


def settings_of_the_image() -> dict[str, str]:
    lines = (ROOT / "conf" / "docker" / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split() for line in lines if line.startswith("spark."))  # type: ignore[misc]


def in_the_image(path: str) -> bool:
    """Whether the Dockerfile puts a file of this checkout there."""
    copied = re.findall(r"^COPY (?!--from)(\S+) (/opt/bench-spark\S*)$", DOCKERFILE, re.MULTILINE)
    return any(
        path.startswith(f"{target}/") and (ROOT / source / path[len(target) + 1 :]).is_file()
        for source, target in copied
    )


def test_the_application_has_only_fields_that_the_operator_knows(
    application: dict[str, Any],
) -> None:
    assert application["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert application["kind"] == "SparkApplication"
    spec = application["spec"]
    assert REQUIRED_OF_A_SPEC <= set(spec) <= OF_A_SPEC
    assert set(spec["driver"]) <= OF_A_DRIVER
    assert set(spec["executor"]) <= OF_AN_EXECUTOR
    assert spec["type"] == "Python"
    assert spec["mode"] == "cluster"
    assert spec["pythonVersion"] in ("2", "3")
    assert spec["restartPolicy"]["type"] == "Never"


def test_the_application_has_the_settings_of_the_image(application: dict[str, Any]) -> None:
    image = settings_of_the_image()
    wanted = {key: value for key, value in image.items() if not key.startswith("spark.yarn.")}
    settings = application["spec"]["sparkConf"]
    assert settings == wanted
    assert {type(value) for value in settings.values()} == {str}


def test_the_application_names_what_the_image_has(application: dict[str, Any]) -> None:
    spec = application["spec"]
    assert spec["sparkVersion"] == importlib.metadata.version("pyspark")
    assert f"FROM apache/spark:{spec['sparkVersion']}-" in DOCKERFILE
    assert spec["image"].endswith(f":{__version__}")
    assert in_the_image(spec["mainApplicationFile"].removeprefix("local://"))
    settings = spec["sparkConf"]
    for role in ("driver", "executor"):
        options = settings[f"spark.{role}.extraJavaOptions"]
        assert in_the_image(options.rpartition("=file:")[2])
    class_path = settings["spark.driver.extraClassPath"]
    assert class_path.removesuffix("/delta/*") in DOCKERFILE


def test_an_executor_has_a_slot_for_an_agent_and_one_for_the_rolling_metrics(
    application: dict[str, Any],
) -> None:
    assert application["spec"]["executor"]["cores"] >= 2
    assert application["spec"]["driver"]["serviceAccount"] in {
        one["metadata"]["name"] for one in documents("rbac.yaml") if one["kind"] == "ServiceAccount"
    }


def test_the_broker_file_is_one_and_its_password_comes_from_a_secret(
    application: dict[str, Any],
) -> None:
    (files,) = documents("files.yaml")
    driver = application["spec"]["driver"]
    (template,) = documents("driver-pod.yaml")
    container = template["spec"]["containers"][0]
    for env in (driver["env"], container["env"]):
        names = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in env}
        for text in files["data"].values():
            assert Broker(**yaml.safe_load(text)).password_env in names
    (mounted,) = driver["configMaps"]
    assert mounted["name"] == files["metadata"]["name"]
    assert template["spec"]["volumes"][0]["configMap"]["name"] == mounted["name"]
    assert container["volumeMounts"][0]["mountPath"] == mounted["path"]
    arguments = application["spec"]["arguments"]
    broker_file = arguments[arguments.index("--broker") + 1]
    assert broker_file.removeprefix(f"{mounted['path']}/") in files["data"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.parent.name)
def test_a_script_names_files_that_exist(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run([shutil.which("bash") or "bash", "-n", str(script)], check=True)
    text = script.read_text()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for path in re.findall(r"(?<![\w/.])(?:conf|jobs)/[\w/.-]+", code):
        assert (ROOT / path).is_file(), path
    for path in re.findall(r"(?:local://|file:)(/opt/bench-spark/[\w/.-]+)", code):
        assert in_the_image(path), path
    own = "conf/docker/" if "/opt/bench-spark" in code else ""
    # A script may let a variable name another file.
    assert re.search(rf"--properties-file \S*\b{own}spark-defaults\.conf", code)


def test_there_is_a_script_for_every_kind_of_cluster() -> None:
    assert [one.parent.name for one in SCRIPTS] == ["kubernetes", "standalone", "yarn"]
