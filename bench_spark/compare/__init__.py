"""Whether one run differs from another, and how surely. Pure: no store, no Spark, no clock.

`series.py` cuts runs into intervals, `resampling.py` and `estimates.py` make confidence intervals
of them, `metrics.py` names what is compared, `gates.py` reads conditions, `comparison.py` puts them
together into one document.
"""
