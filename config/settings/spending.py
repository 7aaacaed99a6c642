"""Budgets for model calls."""

from __future__ import annotations

from pydantic import BaseModel

from config.settings.types import BudgetTokens, BudgetUsd


class SpendingSettings(BaseModel):
    """Budgets for model calls."""

    budget_workspace_tokens_per_day: BudgetTokens | None = None
    """Tokens (prompt and completion) that a whole workspace may use in a day (UTC); 0: none. Unset, here and
    below: unlimited. Admins may set another limit for a workspace."""
    budget_workspace_tokens_per_month: BudgetTokens | None = None
    """Tokens (prompt and completion) that a whole workspace may use in a month (UTC)."""
    budget_workspace_usd_per_day: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that a whole workspace may cost in a day (UTC)."""
    budget_workspace_usd_per_month: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that a whole workspace may cost in a month (UTC)."""
    budget_user_tokens_per_day: BudgetTokens | None = None
    """Tokens (prompt and completion) that one person in a workspace may use in a day (UTC)."""
    budget_user_tokens_per_month: BudgetTokens | None = None
    """Tokens (prompt and completion) that one person in a workspace may use in a month (UTC)."""
    budget_user_usd_per_day: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that one person in a workspace may cost in a day (UTC)."""
    budget_user_usd_per_month: BudgetUsd | None = None
    """US dollars, by LiteLLM's prices, that one person in a workspace may cost in a month (UTC)."""
