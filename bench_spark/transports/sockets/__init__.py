"""What transports on sockets of their own share, whatever the protocol.

loop.py            one epoll over many sockets, and timers: the only place that waits
dialling.py        names, TCP and TLS; what went wrong, in words for people
opening.py         many connections, opened together
line.py            what lanes need of a connection, and of a protocol to open one
wire.py            the socket of a lane: reading, writing, signs of life
lanes.py           opening, losing, reopening and closing lanes
plain.py           connections without a login
places.py          who listens where, for protocols in which either side may be the server
listening.py       consumers that wait for others to connect
sending.py         batches divided among lanes
message_block.py   messages of one size, written by kernels (pure)
receiving.py       what has arrived, taken by rows
reopening.py       the way back of lost lanes
pauses.py          how long they wait before they are dialled again
errands.py         blocking calls in threads, whose results come back on the loop
generations.py     delivery tags that say of which connection of a lane they are (pure)
arrivals.py        what sockets are read into, and the rows that decoders write (pure)
gathering.py       reading less often under full load
grouping.py        rows of a batch by lane (pure)
"""
