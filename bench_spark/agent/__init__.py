"""What runs in an executor: one agent for each assignment of a plan.

agent.py           the steps of a run, in time with all other agents
opening.py         what goes on while lanes are opened
ends.py, several.py
                   brokers of several ends as one transport
lanes.py, serving.py
                   the open lanes, and which subscriptions they serve
instruments.py     recorder, sampler and tracer, as the scenario asks for them
closing.py, inspecting.py
                   what is told when the load is over, and what is left in the broker
host.py, time_slice.py, undisturbed.py
                   the machine, and how little it disturbs

The load itself:

loop.py            the course of a run, and what is done in every turn
parts.py           what the loop is put together from
producing.py       when to send and how much
sending.py         batches made and handed over
consuming.py       what arrives
answers.py         what became of messages
heeding.py         lanes that are blocked, lost and reopened
tick_rows.py       rows on their way to the driver
deliveries.py      what was confirmed and received, so that the driver sees who gets nothing
window_watch.py    windows that do not move
releasing.py       senders that are told of arrivals
setting_aside.py   lanes that are full, and the others that go on
waiting.py         the one place that waits
tally.py           what the parts know of each other

What it decides by, pure:

timeline.py        phases and ticks
pacer.py, recorded.py, due_times.py
                   when messages are due
dealing.py, requests.py
                   which producer sends next
backlog.py         how far senders may run ahead
taking.py          consumers that are slow on purpose
outages.py         who was down for how long, and what went down with it
sizes.py, payload.py, stamping.py
                   bodies and heads

What is measured:

recorder.py        columns in, event rows out
recorder_setup.py  what it must know of the run
judging.py         whose a message is, and whether it was seen before
cells.py, due.py   what is added up, and what was asked for
sampling.py        throughput as the consumer sees it
tracing.py         single messages
rows.py, link.py, wire.py
                   the way to the driver

Real records instead of made bodies:

records.py, carrying.py, given_ids.py, sent_ring.py
"""
