"""How a family of models wants a conversation written as tokens, and how its own tokens are read: `base` is the promise."""
