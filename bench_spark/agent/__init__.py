"""What runs in an executor: one agent for each assignment of a plan.

agent.py           the steps of a run, in time with all other agents
endpoints.py       brokers opened, several of them as one transport
load.py            what takes part in a load, and how much of it is on its way
link.py, protocol.py
                   the way to the driver
host.py            facts of the machine, its time slice, and the wait for descriptors

The load itself:

loop.py            the course of a run, and what is done in every turn
producer.py        when to send and how much; batches stamped and handed over; their outcomes
consumer.py        what arrives
connections.py     lanes that are blocked, lost, full and reopened
reports.py         what the driver is told, ten times a second and every second

What it decides by, pure:

timeline.py        phases and ticks
pacing.py          schedules: when messages are due
flow.py            which producer sends next, in every mode of load; what is due by now
records.py         bodies: envelope and padding, or real records; their sizes

What is measured:

recorder.py        rows in, event rows out; counters and histograms of each tick, role and phase
classification.py  kernels: whose a message is, whether it was seen before, how long it took
sampler.py         throughput as the consumer sees it
tracer.py          single messages
"""
