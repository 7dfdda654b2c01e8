"""Messages that benchmarks send: over MPI, TCP and endpoints, with codecs, beside other software."""
