"""What can be wrong with a model. Each message says what to do about it.

ModelError
├── ModelNotAvailable   nothing is there under that name or path
├── ModelFilesInvalid   files that are damaged, incomplete, or contradict each other
└── UnsupportedModel    a sound model, of a kind this engine does not compute
"""

from __future__ import annotations


class ModelError(Exception):
    pass


class ModelNotAvailable(ModelError):
    pass


class ModelFilesInvalid(ModelError):
    pass


class UnsupportedModel(ModelError):
    pass
