"""AMQP 0-9-1: RabbitMQ, Qpid Broker-J and others of their kind.

loop.py        one epoll over many sockets, and timers: the only place that waits
connection.py  pika's protocol engine on our own non-blocking socket
opening.py     TCP, TLS and login; what went wrong, in words for people
naming.py      names of queues and routing keys; what AMQP can never do (pure)
control.py     requests that wait for their answer: declare, delete, depth, probe
confirms.py    which messages the broker has confirmed (pure)
pika_plane.py  the data plane on pika's channel methods
transport.py   the Transport made of all these
"""
