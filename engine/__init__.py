"""The engine: rollouts, their stages and samplers, connections, server and client. The only place that waits."""
