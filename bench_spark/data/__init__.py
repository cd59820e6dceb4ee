"""Real data as messages: records of files and tables, and IDs that survive a system's changes.

`records` reads records by number, a batch at a time. `ordering` says which number a producer's
message has, as a pure function of producer and sequence, so the ID alone says what was sent.
`carriers` puts an ID into a message and finds it again in what comes out (others by the entry point
`bench_spark.carriers`); `checking` tries a carrier on the records before a run.
"""
