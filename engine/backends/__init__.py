"""Where real models run: tokens in, tokens out, and a state that can stay while a client works; `base` is the promise."""
