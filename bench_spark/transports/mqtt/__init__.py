"""MQTT 3.1.1 and 5: Mosquitto, RabbitMQ with its plugin and others, on `transports/sockets`.

packets.py         control packets as bytes (pure)
codec.py           compiled loops: messages and acknowledgements decoded, acknowledgements written
topics.py          topics, filters, client identifiers; what MQTT can never do (pure)
connection.py      the socket of a lane: login, keep-alive, goodbye, and what its end means
producers.py       messages to publish, and what became of them
consumers.py       messages received, and their acknowledgements
control.py         a connection for single requests: what a broker is, what killed runs have left
transport.py       the Transport made of all these
"""
