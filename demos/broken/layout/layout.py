"""Plain text in columns: wrapping, justifying, tables."""


def wrapped(text, width):
    """Return the text in lines of at most that many characters, broken between words."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def justified(line, width):
    """Return the line stretched to the width; what does not come out even goes to the first gaps."""
    words = line.split()
    gaps = len(words) - 1
    if gaps == 0:
        return line.ljust(width)
    spaces = width - sum(len(word) for word in words)
    each, more = divmod(gaps, spaces)
    parts = []
    for number, word in enumerate(words[:-1]):
        parts.append(word + " " * (each + (1 if number < more else 0)))
    return "".join(parts) + words[-1]


def table(rows):
    """Return the rows with their cells in columns, two spaces between."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
