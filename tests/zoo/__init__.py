"""Tests over the model zoo in ../shared/zoo (beside the repository); skipped where it is missing."""
