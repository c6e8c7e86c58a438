"""Errors that are a user's to mend: the message says where the mistake is and what to do."""


class DataError(ValueError):
    """A file or a dataset is not as it should be."""
