"""`suspended tap`: a relay that shows whether what passes is in order. `relay` carries, `observer` reads, `command` speaks."""
