"""Evaluation: what a trained model does at lengths it has not seen."""
