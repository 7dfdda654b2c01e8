"""The laboratory: prove, price, simulate, plan and draw an arrangement, from Python and behind the commands alike."""
