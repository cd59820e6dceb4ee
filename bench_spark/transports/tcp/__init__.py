"""Messages over bare TCP, for systems that have no broker in front or behind.

framing.py         where a message begins and ends, on the way out and in (pure)
transport.py       producers, consumers, and the Transport made of them
"""
