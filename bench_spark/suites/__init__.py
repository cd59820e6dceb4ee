"""Many runs for one answer: suites of trials, and searches for a window or a rate.

rate.py       the search for the highest sustained rate, and its document
window.py     the search for the best window, and its document
searches.py   trials of a search, each a run of its own on one engine
suite.py      trials of a suite: hooks, what is done already, results

A search is given a function that runs one trial and decides what to try next. It knows neither
Spark nor brokers nor files, so it is tested on curves whose answer is known.
"""
