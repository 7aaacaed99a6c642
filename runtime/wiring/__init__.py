"""What `runtime.bootstrap` builds a process of: one module for each thing that such a process does."""
