"""Records that become bodies: found, indexed once, and read in any order with flat memory.

A source is asked for records by number, a batch at a time. `ordering` says which number a
producer's message has, as a pure function of producer and sequence: nobody keeps a place, a message
that was refused is the same one when it is tried again, and the ID alone says what was sent.
"""
