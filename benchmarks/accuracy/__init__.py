"""How accurate models and saddle points are at an epsilon, by algorithm, group and setting."""
