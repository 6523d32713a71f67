"""`suspended check`: what the checker of `protocol.invariants` says of files, for people and for scripts."""
