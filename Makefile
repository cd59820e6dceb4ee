# Every target prepares what it needs; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-uncompiled test-lowest test-versions test-s3 test-yarn test-image test-deployment test-faults soak check format lock audit bench wheel archive clean

BIN := .venv/bin
SOURCES := bench_spark jobs tests tools benchmarks
TESTS ?= tests

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv from requirements.lock, jars, Spark's class archive, compiled kernels; quick when done
	@tools/setup.sh

demo: setup ## the same load on an embedded Kafka and Qpid, compared; two minutes
	@$(BIN)/bench-spark demo

test: ## the tests, with real brokers and Spark (TESTS=tests/unit: some of them; WORKERS=1)
	@tools/setup.sh --brokers
	@tools/test.sh $(TESTS)

test-uncompiled: setup ## tests of codecs and recorder with kernels as plain Python; part of `make test`
	@tools/test.sh --uncompiled

test-lowest: setup ## unit tests with the lowest version of every range in pyproject.toml; needs the network
	@rm -rf build/lowest
	@$(BIN)/uv venv --quiet --python $(BIN)/python build/lowest
	@$(BIN)/uv pip install --quiet --python build/lowest --resolution lowest-direct --editable .
	@$(BIN)/uv pip install --quiet --python build/lowest --editable '.[dev]'
	@build/lowest/bin/python -m pytest -q tests/unit

test-versions: setup ## a smoke set on Spark 3.5 to 4.2, each in an environment of its own (VERSIONS='3.5 4.1' PYTHON='3.11 3.13' ON=standalone)
	@$(BIN)/python tools/test_versions.py $(VERSIONS) $(addprefix --python ,$(PYTHON)) $(addprefix --on ,$(ON))

test-s3: ## runs with their store on an S3 server of this machine; fetches 690 MB of jars, once
	@tools/setup.sh --brokers
	@$(BIN)/python -m bench_spark.jars hadoop-aws
	@$(BIN)/python -m pytest -m s3 tests/cluster

test-yarn: ## runs on YARN with their store on HDFS, of this machine; fetches 129 MB of jars, once
	@tools/setup.sh --brokers
	@$(BIN)/python -m bench_spark.jars minicluster
	@$(BIN)/python -m pytest -m yarn tests/cluster

test-image: setup ## the Dockerfile built without a registry, and a run in the image; needs root, buildah, mmdebstrap
	@tools/try_image.sh

test-deployment: ## clusters of workers, packed environments, hosts apart (network namespaces); 6 minutes
	@tools/setup.sh --brokers
	@tools/test.sh --deployment

test-faults: ## every fault of docs/reliability.md, and its table from what was seen; 20 minutes (CASE=9: one)
	@tools/setup.sh --brokers
	@$(if $(CASE),,rm -f build/faults.json)
	@$(BIN)/python -m pytest -m 'fault$(if $(CASE),(case=$(CASE)))' --fault-results build/faults.json $(TESTS)
	@$(BIN)/python tools/fault_table.py build/faults.json

soak: setup ## memory of driver, JVM and agents over 30 minutes of load (MINUTES=5: shorter)
	@$(BIN)/python tools/soak.py $(MINUTES)

check: setup ## formatting, lint, types and the quick tests
	$(BIN)/ruff format --check $(wildcard $(SOURCES))
	$(BIN)/ruff check $(wildcard $(SOURCES))
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit

format: setup ## put the code into the form that `make check` wants
	$(BIN)/ruff format $(wildcard $(SOURCES))
	$(BIN)/ruff check --fix $(wildcard $(SOURCES))

lock: setup ## requirements.lock anew from the ranges in pyproject.toml (UPGRADE=1: newest of all)
	@$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-annotate --custom-compile-command 'make lock' --quiet $(if $(UPGRADE),--upgrade) \
		--output-file requirements.lock

audit: setup ## known vulnerabilities of the packages in .venv, by pip-audit; needs the network
	python3 -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	$(BIN)/python -m pip freeze --exclude-editable > build/audit/packages.txt
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement build/audit/packages.txt

bench: ## bench-spark beside other tools into benchmarks/RESULTS.md; 25 minutes (LINE=...: one line)
	@tools/setup.sh --brokers
	@$(BIN)/python -m benchmarks $(if $(LINE),--line $(LINE))

wheel: setup ## an installable wheel in dist/
	@rm -f dist/bench_spark-*.whl
	$(BIN)/python -m build --wheel --no-isolation

archive: wheel ## Python, wheel and dependencies for spark-submit --archives (FOR=executors: less)
	$(BIN)/python tools/pack_environment.py dist/bench_spark-*.whl \
		$(if $(FOR),--for-$(FOR) --out dist/bench-spark-$(FOR).tar.gz)

clean: ## remove what was built in this checkout (results and the jar cache stay)
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
