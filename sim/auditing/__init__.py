"""The parts of the audit: lower bounds on epsilon from attacks on the mechanisms themselves."""
