from tests.deploy.tools import helm, helm4

__all__ = ["helm", "helm4"]
