# SPDX-License-Identifier: Apache-2.0
"""Outputs. Each takes records and knows nothing of how they were measured."""
