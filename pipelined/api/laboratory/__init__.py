"""The laboratory: prove, price, simulate and draw an arrangement, for Python and for the commands."""
