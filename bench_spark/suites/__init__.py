"""Many runs for one answer: suites of trials, and searches for a window or a rate.

A search is given a function that runs one trial and decides what to try next. It knows neither
Spark nor brokers nor files, so it is tested on curves whose answer is known.
"""
