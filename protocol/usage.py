"""Token counts of a response or of one of its segments, as reported to the client (reference 7.1)."""

import attrs


def _count(_instance: object, attribute: "attrs.Attribute[int]", value: object) -> None:
    if type(value) is not int or value < 0:  # bool is an int, and no count
        raise ValueError(f"{attribute.name} must be a whole number of 0 or more, not {value!r}")


@attrs.frozen
class Usage:
    """All counts are always there; `ValueError` if one is negative or a part exceeds its whole."""

    input_tokens: int = attrs.field(default=0, validator=_count)
    cached_tokens: int = attrs.field(default=0, validator=_count)
    """The part of the input that was not prefilled again."""
    cache_write_tokens: int = attrs.field(default=0, validator=_count)
    output_tokens: int = attrs.field(default=0, validator=_count)
    reasoning_tokens: int = attrs.field(default=0, validator=_count)
    """The part of the output that was reasoning."""

    def __attrs_post_init__(self) -> None:
        if self.cached_tokens > self.input_tokens:
            raise ValueError(f"cached_tokens {self.cached_tokens} exceed input_tokens {self.input_tokens}")
        if self.reasoning_tokens > self.output_tokens:
            raise ValueError(
                f"reasoning_tokens {self.reasoning_tokens} exceed output_tokens {self.output_tokens}"
            )

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens
