"""Evaluation: loss and scores of trained models at any length."""
