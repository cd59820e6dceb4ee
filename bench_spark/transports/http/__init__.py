"""HTTP/1.1, for systems that are fed by requests or send them.

messages.py        heads and bodies out of a stream of bytes, and messages as requests (pure)
producers.py       lanes that send requests and read answers
transport.py       peers that send requests to us, and the Transport made of all these
"""
