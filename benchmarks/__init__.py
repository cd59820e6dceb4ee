"""bench-spark beside other tools, and its hot paths on their own: `python -m benchmarks --help`.

A *line* is one question (a load, on one broker); its *comparisons* are tables of contenders that
take turns. Reading order: figures.py, progress.py and results.py (pure), lines.py (what a line is
and how it is run), then the lines (amqp.py, kafka.py, hot_paths.py) with what they set going:
ours.py, perftest.py, plain_pika.py, kafka_tools.py by way of processes.py, and paths.py.
"""
