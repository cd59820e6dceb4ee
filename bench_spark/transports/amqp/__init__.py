"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind, on `transports/sockets`.

connection.py      pika's protocol engine on our own non-blocking socket
opening.py         login and channels; what went wrong, in words for people
control.py         one short-lived connection for requests that wait for their answer
probe.py           what a broker is and can do
topology.py        queues and exchanges: declare, bind, count, delete
layout.py          which queues stand behind a destination (pure)
naming.py          names of queues and routing keys; what AMQP can never do (pure)
confirms.py        which messages of a channel the broker has confirmed (pure)
settlement.py      acks, nacks and returns made into outcomes (pure)
lanes.py           connections and channels as lanes on sockets are made of
settling.py        outcomes of what producers have sent, whatever the plane
acknowledging.py   acks that wait for their group or transaction, whatever the plane
transactions.py    which acks are committed together (pure)
planes.py          which data plane moves the messages
transport.py       the Transport made of all these

The data plane `pika`, on pika's own channel methods, is the reference:

pika_lanes.py, pika_producers.py, pika_consumers.py

The data plane `fast` takes the sockets over once pika has opened them:

handover.py        whether this pika lets go of a connection
wire.py            the socket of a lane: methods, heartbeats, goodbye
frames.py          AMQP frames as bytes (pure)
publishing.py      messages to publish, in blocks that are stamped (pure)
parsing.py         a stream of frames: runs together, others one by one (pure)
deliveries.py      messages to a consumer, by column (pure)
acks.py            acks, read and written many at once (pure)
fast_lanes.py, fast_producers.py, fast_consumers.py
"""
