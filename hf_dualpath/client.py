"""A client of the streaming service: see [`RemoteTranslator`]."""

from .apps.async_client import AsyncStream, ServiceError
from .apps.client import RemoteTranslator, Stream


__all__ = ["AsyncStream", "RemoteTranslator", "ServiceError", "Stream"]
