"""Networks with early exits at work: their tiers on ranks, what travels, who is left out."""

from mpicoll.train.exits.node import Fault
from mpicoll.train.exits.serve import Outcome, serve

__all__ = ["Fault", "Outcome", "serve"]
