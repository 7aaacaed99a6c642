"""``python -m runtime`` is ``agent-runtime``."""

from runtime.cli.main import main

if __name__ == "__main__":
    main()
