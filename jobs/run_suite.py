"""spark-submit's way to `bench-spark suite run`: the same arguments, on the master it has chosen.

spark-submit --master spark://HOST:7077 jobs/run_suite.py SUITE --broker my.yaml --store URI
"""

import sys

from bench_spark.cli import main

if __name__ == "__main__":
    sys.exit(main(["suite", "run", *sys.argv[1:]]))
