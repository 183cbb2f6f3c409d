# SPDX-License-Identifier: Apache-2.0
"""Probes: each times one place in the user's program and knows nothing of what becomes of its readings."""
