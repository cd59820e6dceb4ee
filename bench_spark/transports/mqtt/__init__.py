"""MQTT 3.1.1 and 5: Mosquitto, RabbitMQ with its plugin and others, on `transports/sockets`.

packets.py         control packets as bytes (pure)
parsing.py         a stream of packets: runs together, others one by one (pure)
naming.py          topics, filters, client identifiers; what MQTT can never do (pure)
layout.py          topics and filters of the topologies (pure)
wire.py            the socket of a lane: login, keep-alive, goodbye
protocol.py        how connections are opened; what went wrong, in words for people
control.py         one short-lived connection for requests that wait for their answer
probe.py           what a broker is and can do
publishing.py      messages to publish, in blocks that are stamped (pure)
identifiers.py     which messages are unacknowledged, by packet identifier (pure)
acks.py            acknowledgements, read and written many at once (pure)
settlement.py      acknowledgements made into outcomes (pure)
alike.py           what messages have in common that differ in their payload only (pure)
deliveries.py      messages to a consumer, by column (pure)
together.py        messages to many consumers, decoded together (pure)
tokens.py          what is needed to acknowledge a message (pure)
producers.py, consumers.py
transport.py       the Transport made of all these
"""
