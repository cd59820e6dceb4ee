"""Whether this machine and these brokers are ready for a run, and how to mend what is not.

- `finding` is what a check says, and how checks are carried out: side by side, none for long;
- `checks` looks at what bench-spark itself needs, at the computer, at the store and at brokers.

Nothing is fetched, made or changed. A broker is connected to and logged in to, and no more.
"""
