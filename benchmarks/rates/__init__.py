"""How fast gaps fall with n and epsilon, next to rates, guarantees and plans of the theorems."""
