# bench-spark for a cluster: Spark 4.2.0 with the Delta jars, and the wheel in an environment of its own.
#   docker build -t bench-spark .
#   docker run --rm bench-spark bench-spark --help
# As the executors' and driver's image on Kubernetes: spark.kubernetes.container.image=bench-spark and
# local:///opt/bench-spark/jobs/run_scenario.py as the application.

FROM python:3.11-slim AS build
WORKDIR /source
RUN pip install --no-cache-dir build==1.6.1 jgo==3.2.0 uv==0.13.7
COPY . .
RUN python -m build --wheel --outdir /wheel \
    && BENCH_SPARK_CACHE=/tmp/cache python -m bench_spark.jars --into /jars delta

FROM apache/spark:4.2.0-scala2.13-java17-ubuntu
USER root

# The base's own Python is older than 3.11, so the wheel gets one of its own.
COPY --from=build /usr/local/bin/uv /usr/local/bin/uv
COPY --from=build /wheel /source/requirements.lock /tmp/wheel/
ENV UV_PYTHON_INSTALL_DIR=/opt/python
# pyspark's Python code is needed, the second copy of Spark that comes with it (450 MB) is not:
# SPARK_HOME names the first.
RUN uv venv --python 3.11 /opt/bench-spark/venv \
    && uv pip install --no-cache --python /opt/bench-spark/venv/bin/python \
        --constraint /tmp/wheel/requirements.lock /tmp/wheel/*.whl \
    && rm -rf /opt/bench-spark/venv/lib/python3.11/site-packages/pyspark/jars /tmp/wheel \
    && mkdir /opt/bench-spark/venv/lib/python3.11/site-packages/bench_spark/compiled_kernels \
    && /opt/bench-spark/venv/bin/python -m bench_spark.core.kernel_cache

COPY --from=build /jars /opt/bench-spark/jars
COPY jobs /opt/bench-spark/jobs
COPY conf /opt/bench-spark/conf
# The base has no conf directory; Spark puts this one on the class path, so both files are found.
COPY conf/docker/spark-defaults.conf conf/log4j2.properties /opt/spark/conf/

ENV BENCH_SPARK_JARS=/opt/bench-spark/jars \
    PYSPARK_PYTHON=/opt/bench-spark/venv/bin/python \
    PATH=/opt/bench-spark/venv/bin:/opt/spark/bin:$PATH

# The base's unprivileged user; its working directory, /opt/spark/work-dir, is writable for it.
USER spark
