"""HTTP/1.1, for systems that are fed by requests or send them.

heads.py           request and status lines, headers, and how long a body is (pure)
parsing.py         messages out of a stream of bytes (pure)
requests.py        messages as requests (pure)
answers.py         what became of requests (pure)
producers.py       lanes that send requests and read answers
requests_taken.py  peers that send requests to us
probe.py           whether a server is there and lets us in
transport.py       puts it together; listening itself is in `sockets/listening.py`
"""
