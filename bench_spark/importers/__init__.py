"""Imports scenario and broker files from other tools. Pure: text in, text out.

- `perftest_flags` has the table of PerfTest's options, and reads a command line or environment
  variables by it; `perftest` makes a scenario of what was read;
- `omb` does the same for workload and driver files of the OpenMessaging Benchmark;
- `first_files` makes a scenario and a broker file for `init` from a broker's address;
- `draft` holds what has been understood so far, with the reason for what was left out, and writes
  the files. tools/importer_tables.py makes the tables of docs/coming-from.md.

A password in the source is dropped where it is read: only the fact that there was one goes on.
"""
