"""The parser of one command of `suspended`: two things that argparse has no place for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence


class CommandParser(ArgumentParser):
    """A command's parser. `more` makes a part of the help that is too dear to make when nobody asks for it."""

    more: Callable[[], str] | None = None
    reads_its_own = False
    """All that follows is read elsewhere, its `--help` too: what it needs is too dear to load for the other commands."""

    def format_help(self) -> str:
        """As argparse says, and what `more` makes."""
        return super().format_help() + (f"\n{self.more()}" if self.more else "")

    def parse_known_args(  # type: ignore[override]  # one of its overloads, which is how subcommands are called
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """As argparse says, or `arguments` unread."""
        if self.reads_its_own:
            return Namespace(command=self.prog.rpartition(" ")[2], arguments=list(args or ())), []
        return super().parse_known_args(args, namespace)
