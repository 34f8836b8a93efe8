"""Autoscaling: the controller wants as many shards, schedulers and edges as the load needs, within `[autoscale]`. Off by default.

`engine.features.autoscaling.core` has the policy, which sees the rows of each round. What it decides is stored as the numbers that an
operator wants are, so a controller that dies afterwards changes nothing; its decisions that were shown are forgotten with it.
"""
