"""Identity carriers: how an ID is put into a message and found again in what comes out.

`base` is the interface, also for carriers of one's own (entry points `bench_spark.carriers`);
`registry` finds them by name; `checking` tries one on the records before a run.
"""
