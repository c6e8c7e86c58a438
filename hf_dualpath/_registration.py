"""`import hf_dualpath` makes transformers' Auto classes know our models without importing transformers itself."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder


def register_when_imported(module: str, registration: str):
    """Imports `registration` right after `module` is: now, if it is there already, else when it comes."""
    if module in sys.modules:
        importlib.import_module(registration)
    else:
        sys.meta_path.insert(0, _Finder(module, registration))


class _Finder(MetaPathFinder):
    """Leaves finding to Python, and adds one step to the loading of one module."""

    def __init__(self, module: str, registration: str):
        self.module, self.registration = module, registration

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self.registration)
        return spec


class _Loader(Loader):
    def __init__(self, loader, registration: str):
        self.loader, self.registration = loader, registration

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        importlib.import_module(self.registration)
