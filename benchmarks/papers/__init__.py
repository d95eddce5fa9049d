"""Figures that papers print, beside what the library measures."""
