"""Random numbers that do not depend on the arrangement: keyed by place, the masks made of them, and keyed orders."""
