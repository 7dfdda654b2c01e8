"""Messages over MPI: loading the library, the progress engine, and memory that ranks of one node share."""
