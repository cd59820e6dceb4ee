"""What runs in an executor: one agent for each assignment of a plan.

agent.py           the steps of a run, in time with all other agents
endpoints.py       brokers opened, several of them as one transport
job.py             what is to be done, the open lanes, and what measures them as the scenario asks
link.py, protocol.py
                   the way to the driver
host.py            facts of the machine, its time slice, and the wait for descriptors

The load itself:

loop.py            the course of a run, what is done in every turn, and reported every second
producer.py        when to send and how much; batches stamped and handed over; their outcomes
consumer.py        what arrives
connections.py     lanes that are blocked, lost, full and reopened

What it decides by, pure:

timeline.py        phases and ticks
pacing.py          schedules: when messages are due
flow.py            which producer sends next, in every mode of load; what is due by now
records.py         bodies: envelope and padding, or real records; their sizes

What is measured:

recorder.py        rows in, event rows out
classification.py  kernels: whose a message is, whether it was seen before, how long it took
intervals.py       counters and histograms of one tick, role, phase and destination
sampler.py         throughput as the consumer sees it
tracer.py          single messages
"""
