"""What other tools were told, as scenario and broker files. Pure: text in, text out.

- `perftest_flags` is the table of PerfTest's options, `perftest_words` reads a command line or
  environment variables by it, `perftest` makes a scenario of what was read;
- `omb_keys` and `omb` do the same for workload and driver files of the OpenMessaging Benchmark;
- `beginning` makes first files of a broker's address;
- `draft` holds what has been understood so far, with the reason for what was left out; `writing`
  makes files of it; `tables` makes the tables of docs/coming-from.md.

A password that is met on the way is dropped where it is met: only the fact that there was one goes
on.
"""
