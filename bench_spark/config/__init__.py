"""What may be asked for: scenario, broker and suite files, read, checked and put together.

The files, as pydantic models; a docstring below a key is its text in docs/reference.md:

models.py          Scenario
sections.py        its sections that every protocol uses: load, message, data set, identity, ends
protocols.py       its sections of one protocol each
broker.py          Broker: address, login, TLS, where its resources are read
suite.py           SuiteFile, and the grid of trials that comes of it
objectives.py      `slo`: conditions on numbers of a result
fields.py          what all sections are made of: names, values, secrets, patterns, Conflict

What they mean together:

conflicts.py       keys of a scenario that contradict each other
delivery.py        what `delivery` stands for in each protocol
topologies.py      who publishes where, and who receives it
ends.py            the brokers of a run, and the scenario as each of them sees it

How they are read:

loader.py          files by path or shipped name, `--set`; suite_loader.py the same for suites
yaml_text.py       YAML 1.2, bounded
problems.py        what each key takes, and the wording of every error
reference.py       docs/reference.md and JSON Schemas
"""
