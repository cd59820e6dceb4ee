"""Searches over runs: the best window (A6) and the highest sustained rate (C2).

Pure: a search is given a function that runs one trial, and decides what to try next. It knows
neither Spark nor brokers nor files, so it is tested on curves whose answer is known.
"""
