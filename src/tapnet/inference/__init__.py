"""Your own classes: a task is fitted to a few pictures, kept in one file, and used, changed and exported."""
