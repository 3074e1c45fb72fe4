"""Requests: the handles of calls that are not complete yet."""

from mpicoll.requests.own import *
from mpicoll.requests.own import __all__ as __all__
