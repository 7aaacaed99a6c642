"""Budgets, prices and usage of model calls."""

from runtime.billing.budgets import (
    TERMS,
    UNLIMITED,
    BudgetExceeded,
    Budgets,
    Payer,
    RerankCosts,
    Reservation,
    Spending,
    State,
    Term,
    Whose,
    prompt_tokens,
)
from runtime.billing.prices import Prices
from runtime.billing.usage import REPLY, TRANSCRIPTION, ModelUsage, Usage

__all__ = [
    "REPLY",
    "TERMS",
    "TRANSCRIPTION",
    "UNLIMITED",
    "BudgetExceeded",
    "Budgets",
    "ModelUsage",
    "Payer",
    "Prices",
    "RerankCosts",
    "Reservation",
    "Spending",
    "State",
    "Term",
    "Usage",
    "Whose",
    "prompt_tokens",
]
