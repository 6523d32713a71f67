"""`suspended demo`: an agent repairs a broken project in one suspended response, and one can watch."""
