"""Audits, attacks and planted bugs, and what noise and accountants cost."""
