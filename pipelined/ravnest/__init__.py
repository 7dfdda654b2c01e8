"""Ravnest: uneven PCs form clusters that each hold the model once, and average between clusters."""
