"""The rules of `protocol.invariants`, by family: what each says, and the handlers that find where it is broken."""
