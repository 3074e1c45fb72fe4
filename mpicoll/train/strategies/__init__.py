"""How ranks train one model together, one module a strategy."""
