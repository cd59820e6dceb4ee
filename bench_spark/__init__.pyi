from bench_spark.api import Result as Result
from bench_spark.api import load_broker as load_broker
from bench_spark.api import load_scenario as load_scenario
from bench_spark.api import run as run

__version__: str
