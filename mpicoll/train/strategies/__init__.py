"""How ranks train one model together; nobody else knows which strategies there are.

A strategy answers what `protocol` asks of a name, and makes a `training.Training`.
"""
