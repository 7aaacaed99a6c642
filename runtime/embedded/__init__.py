"""Servers that the runtime brings along and starts itself, each as a child process."""
