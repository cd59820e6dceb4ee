"""`python -m bench_spark.cli`: for a machine where the command itself is not on the path."""

import sys

from bench_spark.cli import main

sys.exit(main())
