"""spark-submit's way to `bench-spark search-rate`: the same arguments, on the master that it has
chosen.

    spark-submit --master spark://HOST:7077 jobs/search_rate.py steady --broker my.yaml

spark-submit puts standard output and standard error into one stream; `--format json=FILE` keeps a
result apart.
"""

import sys

from bench_spark.cli import main

if __name__ == "__main__":
    sys.exit(main(["search-rate", *sys.argv[1:]]))
