"""How fast gaps fall with n and epsilon, beside rates, guarantees and plans of the theorems."""
