"""Requests: what a program holds of a call that has not ended."""

from mpicoll.requests.own import *
from mpicoll.requests.own import __all__ as __all__
