"""Rows of single messages: the files that agents write, and what they add up to."""
