"""Budgets and usage of model calls: `Spending` pays for them, `Budgets` limits them, `UsageCounters` counts them."""

from runtime.billing.budgets import TERMS, UNLIMITED, BudgetExceeded, Budgets, BudgetState, BudgetTerm, Whose
from runtime.billing.spending import Payer, Price, RerankCosts, Reservation, Spending, prompt_tokens
from runtime.billing.usage import REPLY, TRANSCRIPTION, ModelUsage, UsageCounters

__all__ = [
    "REPLY",
    "TERMS",
    "TRANSCRIPTION",
    "UNLIMITED",
    "BudgetExceeded",
    "BudgetState",
    "BudgetTerm",
    "Budgets",
    "ModelUsage",
    "Payer",
    "Price",
    "RerankCosts",
    "Reservation",
    "Spending",
    "UsageCounters",
    "Whose",
    "prompt_tokens",
]
