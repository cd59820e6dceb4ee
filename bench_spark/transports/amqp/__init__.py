"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind, on `transports/sockets`.

connection.py      pika's protocol engine on our own non-blocking socket
opening.py         login and channels; what went wrong, in words for people
handover.py        whether this pika lets go of a connection
control.py         one short-lived connection for requests that wait for their answer
probe.py           what a broker is and can do
topology.py        queues and exchanges: declare, bind, count, delete
layout.py          which queues stand behind a destination (pure)
naming.py          names of queues and routing keys; what AMQP can never do (pure)
frames.py          AMQP frames as bytes (pure)
parsing.py         a stream of frames: what decoders leave to Python (pure)
deliveries.py      messages to a consumer, decoded into rows (pure)
confirms.py        acks, nacks and returns to a producer, settled into outcomes (pure)
publishing.py      messages to publish, written from templates (pure)
acks.py            acks to write (pure)
transactions.py    which acks are committed together (pure)
wire.py            the socket of a lane: methods, heartbeats, close
lanes.py           connections and channels as lanes on sockets are made of
producers.py       sends batches, reports what became of them
consumers.py       receives rows, acknowledges them
transport.py       the Transport made of all these
"""
