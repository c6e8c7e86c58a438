"""A client of the streaming service: see [`RemoteTranslator`]."""

from .apps.client import AsyncStream, RemoteTranslator, Stream


__all__ = ["AsyncStream", "RemoteTranslator", "Stream"]
