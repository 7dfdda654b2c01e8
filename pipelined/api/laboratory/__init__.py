"""The laboratory: prove, price, simulate, plan and draw an arrangement, for Python and for the commands."""
