"""Programs of the public API that train a row of layers: their flags, job, loop and exit code."""
