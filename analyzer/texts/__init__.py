"""Analysis of runs with texts: theory of the plan, prediction of the block pool, and what the engine counted."""
