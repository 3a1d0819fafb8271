"""``%mn_push`` and ``%mn_pull``: variables to the ranks and back."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument

from nbmn.cluster.transfer import describe_pull, pull, push
from nbmn.magics.arguments import arguments, parse, some_ranks
from nbmn.magics.context import ContextMagics
from nbmn.magics.journal import Pushed
from nbmn.ranks import name_ranks


@magics_class
class TransferMagics(ContextMagics):
    """Move variables."""

    @arguments()
    @argument("names", metavar="NAME", nargs="+", help="variables of the notebook")
    @argument("--ranks", metavar="RANKS", default="all", help="to which ranks (default all)")
    @line_magic
    def mn_push(self, line: str) -> None:
        """Set variables of the notebook on the ranks, which get copies."""
        args = parse(self.mn_push, line)
        session = self.context.require_session()
        ranks = self.context.choose_ranks([args.ranks])
        names = [name for text in args.names for name in text.split(",") if name]
        missing = [name for name in names if name not in self.shell.user_ns]
        if missing:
            raise UsageError(f"the notebook has no variable {', '.join(missing)}")
        nbytes = push(session, {name: self.shell.user_ns[name] for name in names}, ranks)
        self.context.journal.add(Pushed(tuple(names), (args.ranks,)))
        print(f"{', '.join(names)} → {name_ranks(ranks)} ({_size(nbytes)})")

    @arguments()
    @argument("name", metavar="NAME", help="a variable of the ranks")
    @some_ranks(help="from which ranks (default all)")
    @line_magic
    def mn_pull(self, line: str) -> None:
        """Fetch a variable: from one rank its value, from several a dict by rank."""
        args = parse(self.mn_pull, line)
        if not args.name.isidentifier():
            raise UsageError(f"{args.name!r} is not a variable's name")
        session = self.context.require_session()
        ranks = self.context.choose_ranks(args.ranks)
        values = pull(session, args.name, ranks)
        self.shell.user_ns[args.name] = values[ranks[0]] if len(ranks) == 1 else values
        print(describe_pull(args.name, ranks))


def _size(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
