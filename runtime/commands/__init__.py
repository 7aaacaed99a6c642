"""What people may tell the bot itself to do, in a chat: ``/word``, ``!word`` or the platform's own commands."""
