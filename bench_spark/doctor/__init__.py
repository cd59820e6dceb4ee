"""Whether this machine and these brokers are ready for a run, and how to mend what is not.

- `finding` is what a check says; `examining` carries checks out side by side, none for long;
- `program` looks at what bench-spark itself needs, `machine` at the computer, `places` at the store
  and at brokers.

Nothing is fetched, made or changed. A broker is connected to and logged in to, and no more.
"""
