"""Carrying out a suite of trials: hooks, what is done already, one trial after the other."""
