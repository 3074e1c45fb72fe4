"""Networks with early exits at work: their tiers on ranks, what travels, who is left out."""
