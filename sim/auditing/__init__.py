"""Empirical lower bounds on epsilon, from attacks on the mechanisms."""
