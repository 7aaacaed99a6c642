"""Files that come with messages: fetched, read in a process of their own, and made part of the turn."""
