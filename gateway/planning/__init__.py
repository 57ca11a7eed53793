"""Planning K/V memory: what a model keeps per token, what fits a GPU, which engine flags follow.

Arithmetic only: nothing here talks to an engine. docs/plan.md has the formulas and their checks.
"""

from gateway.planning.catalog import Catalog
from gateway.planning.planner import plan
from gateway.planning.request import DoesNotFit, PlanRequest
from gateway.planning.result import Plan

__all__ = ["Catalog", "DoesNotFit", "Plan", "PlanRequest", "plan"]
