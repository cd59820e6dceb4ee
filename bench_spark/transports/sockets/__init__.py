"""What transports on sockets of their own share, whatever the protocol.

loop.py            one epoll over many sockets, timers, blocking calls in threads
dialling.py        names, TCP and TLS; what went wrong, in words for people
connection.py      one connection: opening, reading, writing, signs of life
lanes.py           opening, losing and closing lanes; batches divided among them; what has arrived
reopening.py       lost lanes are opened again
listening.py       addresses, and consumers that wait for others to connect
message_block.py   messages of one size, one behind the other in memory (pure)
rows.py            what sockets are read into, and the rows that decoders write (pure)
"""
