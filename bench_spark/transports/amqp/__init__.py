"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind.

loop.py            one epoll over many sockets, and timers: the only place that waits
connection.py      pika's protocol engine on our own non-blocking socket
opening.py         TCP, TLS and login; what went wrong, in words for people
control.py         one short-lived connection for requests that wait for their answer
probe.py           what a broker is and can do
topology.py        queues and exchanges: declare, bind, count, delete
naming.py          names of queues and routing keys; what AMQP can never do (pure)
confirms.py        which messages of a channel the broker has confirmed (pure)
settlement.py      acks, nacks and returns made into outcomes (pure)
lanes.py           opening, losing and closing lanes
pika_producers.py  the data plane `pika`: on pika's own channel methods
pika_consumers.py
transport.py       the Transport made of all these
"""
