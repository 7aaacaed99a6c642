"""One module for each command, whose ``command`` is what `runtime.cli.main` runs."""
