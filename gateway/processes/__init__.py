"""Several gateway processes behind one port, and the supervisor that keeps them (`--processes N`)."""
