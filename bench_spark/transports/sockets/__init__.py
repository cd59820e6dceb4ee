"""What transports on sockets of their own share, whatever the protocol.

loop.py            one epoll over many sockets, timers, blocking calls in threads, gathered reads
connection.py      one connection: reading, writing, signs of life, end
opening.py         from an address to open connections; lost lanes are opened again
lanes.py           producers and consumers whose lanes are connections: sending, receiving, losing
listening.py       addresses, and consumers that wait for others to connect
messages.py        messages of a batch as bytes, stamped into a template (pure)
buffers.py         what is read into, and the rows of decoders (pure)

A protocol has a subclass of `SocketConnection`, a `Connector` that says how these are opened, and a
`Sender` and a `Receiver` that `SocketProducers` and `SocketConsumers` are made with.
"""
