"""Processes that share hosts: the arbiter, region managers and their journals."""
