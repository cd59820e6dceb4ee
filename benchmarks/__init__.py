"""bench-spark beside other tools, and its hot paths on their own: `python -m benchmarks --help`.

A *line* is one question (a load, on one broker); its *comparisons* are tables of contenders that
take turns. Reading order: figures.py and results.py (pure), lines.py (what a line is and how it is
run), then the lines themselves (amqp.py, kafka.py, hot_paths.py) and the tools they start (ours.py,
perftest.py, plain_pika.py, kafka_tools.py, processes.py).
"""
