"""The wire of suspended responses, without I/O: events, states, codec, sessions, traces."""
