"""The subcommands of ``mpicoll``, one module each."""
