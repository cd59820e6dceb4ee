"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind.

loop.py            one epoll over many sockets, and timers: the only place that waits
connection.py      pika's protocol engine on our own non-blocking socket
opening.py         TCP, TLS and login; what went wrong, in words for people
control.py         one short-lived connection for requests that wait for their answer
probe.py           what a broker is and can do
topology.py        queues and exchanges: declare, bind, count, delete
layout.py          which queues stand behind a destination (pure)
naming.py          names of queues and routing keys; what AMQP can never do (pure)
confirms.py        which messages of a channel the broker has confirmed (pure)
settlement.py      acks, nacks and returns made into outcomes (pure)
lanes.py           opening, losing, reopening and closing lanes
reopening.py       the way back of lost lanes
errands.py         blocking calls in threads, whose results come back on the loop
generations.py     delivery tags that say of which connection of a lane they are (pure)
settling.py        outcomes of what producers have sent, whatever the plane
acknowledging.py   acks that wait for their group or transaction, whatever the plane
transactions.py    which acks are committed together (pure)
planes.py          which data plane moves the messages
transport.py       the Transport made of all these

The data plane `pika`, on pika's own channel methods, is the reference:

pika_lanes.py, pika_producers.py, pika_consumers.py

The data plane `fast` takes the sockets over once pika has opened them:

handover.py        whether this pika lets go of a connection
wire.py            the socket of a lane: reading, writing, heartbeats, goodbye
frames.py          AMQP frames as bytes (pure)
publishing.py      messages to publish, in blocks that are stamped (pure)
runs.py            how far a run of alike frames reaches (pure)
parsing.py         a stream of frames: runs together, others one by one (pure)
deliveries.py      messages to a consumer, by column (pure)
arrivals.py        columns put together (pure)
acks.py            acks, read and written many at once (pure)
gathering.py       reading less often under full load
grouping.py        rows of a batch by lane (pure)
fast_lanes.py, fast_producers.py, fast_consumers.py
"""
