"""Messages over bare TCP, for systems that have no broker in front or behind.

framing.py         where a message ends, on the way out (pure)
parsing.py         and on the way in (pure)
lanes.py           producers, and consumers that connect
transport.py       puts it together; consumers that listen are in `sockets/listening.py`
"""
