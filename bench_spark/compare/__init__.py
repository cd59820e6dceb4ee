"""Whether one run differs from another, and how surely. Pure: no store, no Spark, no clock.

`series.py` names what is compared and cuts runs into intervals, `estimates.py` makes confidence
intervals of them, `comparison.py` reads conditions and puts all together into one document.
"""
